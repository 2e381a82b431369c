"""What is odd about a data set, and would pass for a good or a bad result: told by `split`, or refused."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from photofinish.data.images import Int64Array, LabelledImages, PartName
from photofinish.errors import MistakeError
from photofinish.params.datasets import DatasetPlan, LocalDataset, OwnDataset
from photofinish.wording import listed, printable, shortened

Fingerprints = npt.NDArray[np.uint64]
_FINGERPRINT_BYTES = 8


def fingerprints_of(images: npt.NDArray[Any]) -> Fingerprints:
    """A number for each image, which images of the same pixels share."""
    digests = (hashlib.blake2b(image, digest_size=_FINGERPRINT_BYTES).digest() for image in images)
    return np.frombuffer(b"".join(digests), dtype=np.uint64)


def duplicates(
    plan: DatasetPlan,
    raw: LabelledImages,
    rows: Mapping[PartName, Int64Array],
    fingerprints: Mapping[PartName, Fingerprints],
) -> list[str]:
    """A line for each two parts that share images, and for images under two labels; both pixel for pixel.

    Parts that the user has made may share none, unless params.yaml allows it.
    """
    told, refused = [], []
    for first, second in combinations(rows, 2):
        shared = np.flatnonzero(np.isin(fingerprints[second], fingerprints[first]))
        if not len(shared):
            continue
        same = fingerprints[first] == fingerprints[second][shared[0]]
        pair = _pair(raw, rows[first][same][0], rows[second][shared[0]])
        what = "images" if raw.dtype == "uint8" else "items"
        line = f"{second} {what} that are {first} {what} too: {len(shared):,} of {len(rows[second]):,}, such as {pair}"
        told.append(line)
        if {first, second} <= raw.own_parts.keys():
            refused.append(line)
    dataset = plan.dataset
    if refused and isinstance(dataset, LocalDataset | OwnDataset) and not dataset.allow_duplicates:
        raise MistakeError(
            f"data set '{plan.name}': {'; '.join(refused)}. What is tested on them says nothing of new images: leave"
            f" them in one part, or set datasets.{plan.name}.allow_duplicates: true in params.yaml"
        )
    if raw.task != "classes":
        return told
    every_row, prints = np.concatenate([*rows.values()]), np.concatenate([fingerprints[part] for part in rows])
    labels = raw.labels[every_row]
    order = np.lexsort((labels, prints))
    prints, labels, every_row = prints[order], labels[order], every_row[order]
    odd = np.flatnonzero((prints[1:] == prints[:-1]) & (labels[1:] != labels[:-1]))
    if len(odd):
        pair = _pair(raw, every_row[odd[0]], every_row[odd[0] + 1])
        names = " and ".join(f"'{printable(shortened(raw.class_names[labels[at]]))}'" for at in (odd[0], odd[0] + 1))
        told.append(f"images under more labels than one: {len(np.unique(prints[odd])):,}, such as {pair} ({names})")
    return told


def odd_classes(plan: DatasetPlan, raw: LabelledImages) -> list[str]:
    """A line where there is but one class, and where names of the user's own hardly differ."""
    told, alike = [], defaultdict[str | float, list[str]](list)
    if len(raw.class_names) == 1 and raw.task == "classes":
        told.append(f"there is a single class, '{printable(shortened(raw.class_names[0]))}': nothing is to be learned")
    for name in raw.class_names if isinstance(plan.dataset, LocalDataset) else ():
        try:
            alike[float(name)].append(name)
        except ValueError:
            alike[name.casefold()].append(name)
    for names in alike.values():
        if len(names) > 1:
            shown = listed([f"'{printable(shortened(name))}'" for name in names])
            told.append(f"classes that hardly differ: {shown}")
    return told


def _pair(raw: LabelledImages, first: int, second: int) -> str:
    return " and ".join(
        printable(shortened(raw.origins[row])) if raw.origins else f"row {row}" for row in (first, second)
    )
