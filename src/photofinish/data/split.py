"""Divide a data set into training, validation and test parts, and pack each into one file."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn.model_selection import train_test_split

from photofinish.config.datasets import DatasetPlan, LocalDataset, OwnDataset, drawn_counts
from photofinish.data import MANIFEST, PartName
from photofinish.data.images import Int64Array, LabelledImages, save_array
from photofinish.data.packed import Manifest, part_file
from photofinish.errors import ConfigError
from photofinish.files import explained_when_full, sha256_of_file, write_bytes_atomically
from photofinish.wording import all_or_some

Channels = tuple[float, ...]
Fingerprints = npt.NDArray[np.uint64]
_SHADES = 256
_BYTES_AT_A_TIME = 16 << 20
_FINGERPRINT_BYTES = 8


def split(plan: DatasetPlan, raw: LabelledImages, folder: Path) -> Manifest:
    """Write the packed split into `folder`, print warnings about it, and return its manifest."""
    mean, std = plan.dataset.mean, plan.dataset.std
    if problem := _problem_of_mean(mean, raw):
        raise ConfigError(f"datasets.{plan.name}.mean {problem}")
    folder.mkdir(parents=True, exist_ok=True)
    rows = divide(raw, plan)
    with explained_when_full(folder, f"the split of data set '{plan.name}'"):
        packed = {part: _pack(part, raw, chosen, folder) for part, chosen in rows.items()}
    fingerprints = {part: content.fingerprints for part, content in packed.items()}
    for line in (*raw.notes, *duplicates(plan, raw, rows, fingerprints)):
        print(f"note: {line}")
    manifest = Manifest(
        task=raw.task,
        class_names=raw.class_names,
        shape=raw.shape,
        dtype=raw.dtype,
        counts={part: len(chosen) for part, chosen in rows.items()},
        mean=mean or packed["train"].mean,
        std=std or packed["train"].std,
        sha256={path.name: sha256_of_file(path) for path in sorted(folder.glob("*.npy"))},
    )
    write_bytes_atomically(folder / MANIFEST, f"{manifest.model_dump_json(indent=2)}\n".encode())
    return manifest


def _problem_of_mean(mean: Channels | None, raw: LabelledImages) -> str | None:
    if mean is None:
        return None
    if raw.dtype == "int64":
        return "is of no use in params.yaml: the items are whole numbers, which the network takes as they are"
    if raw.dtype == "uint8" and max(mean) > 1:
        return "must be from 0 to 1 in params.yaml: pixels are on that scale"
    if len(mean) != raw.shape[0]:
        return f"has {len(mean)} numbers in params.yaml; the images have {raw.shape[0]} channels"
    return None


def divide(raw: LabelledImages, plan: DatasetPlan) -> dict[PartName, Int64Array]:
    """Return the rows of each part, in the raw data's order.

    Parts that the source lacks are drawn by the seed alone, evenly over classes.
    """
    own, dataset = raw.own_parts, plan.dataset
    rest = own.get("train", np.arange(len(raw.labels), dtype=np.int64))
    sizes: dict[PartName, float | int | None] = {"test": dataset.test, "validation": dataset.validation}
    for part, size in sizes.items():
        if part not in own and size is None:
            raise ConfigError(f"datasets.{plan.name}.{part} is required in params.yaml: the source has no such part")
        if part in own and size is not None:
            raise ConfigError(f"datasets.{plan.name}.{part} is of no use in params.yaml: the source has such a part")
    try:
        counts = drawn_counts(dataset, len(rest))
    except ValueError as error:
        raise ConfigError(f"{error}; make them smaller in params.yaml, datasets.{plan.name}") from None
    parts = {**own}
    for part, count in counts.items():
        labels = raw.labels[rest] if raw.task == "classes" else None
        try:
            left, chosen = train_test_split(
                rest, test_size=count, random_state=dataset.seed, shuffle=True, stratify=labels
            )
        except ValueError as error:
            # Often caused by a misspelt label.
            of_class = np.bincount(raw.labels[rest], minlength=len(raw.class_names))
            lone = [repr(name) for name, images in zip(raw.class_names, of_class, strict=False) if images == 1]
            why = f"there is only one image left of {all_or_some(lone)}" if lone else error
            raise ConfigError(
                f"a {part} part of {count} images can't be drawn evenly in params.yaml, datasets.{plan.name}: {why}"
            ) from None
        rest, parts[part] = left, np.sort(chosen)
    return {"train": np.sort(rest), "validation": parts["validation"], "test": parts["test"]}


class _Packed(NamedTuple):
    """Statistics of a part's items."""

    mean: Channels
    """of images, per channel on the scale from 0 to 1; exact, from the histogram of the 256 values"""
    std: Channels
    fingerprints: Fingerprints


def _pack(part: PartName, raw: LabelledImages, rows: Int64Array, folder: Path) -> _Packed:
    """Write the part's files, some images at a time."""
    save_array(folder / part_file(part, "labels"), raw.labels[rows])
    save_array(folder / part_file(part, "rows"), rows)
    counts = np.zeros((raw.shape[0], _SHADES), dtype=np.int64)
    fingerprints = [fingerprints_of(np.empty(0, dtype=np.uint8))]
    dtype, is_images = np.dtype(raw.dtype), raw.dtype == "uint8"
    images_at_a_time = max(1, _BYTES_AT_A_TIME // (math.prod(raw.shape) * dtype.itemsize))
    header = {"descr": dtype.str, "fortran_order": False, "shape": (len(rows), *raw.shape)}
    with (folder / part_file(part, "images")).open("wb") as packed:  # a memory map would count as memory
        np.lib.format.write_array_header_1_0(packed, header)
        for start in range(0, len(rows), images_at_a_time):
            images = np.ascontiguousarray(raw.read(rows[start : start + images_at_a_time]))
            packed.write(images.data)
            fingerprints.append(fingerprints_of(images))
            for channel in range(raw.shape[0] if is_images else 0):
                counts[channel] += np.bincount(images[:, channel].ravel(), minlength=_SHADES)
    values = np.arange(_SHADES) / (_SHADES - 1)
    means, stds = [], []
    for of_channel in counts if is_images else ():
        share = of_channel / max(1, of_channel.sum())
        means.append(float(share @ values))
        std = float(np.sqrt(share @ (values - means[-1]) ** 2))
        stds.append(std if std > 0 else 1.0)  # a channel of one value is divided by 1
    return _Packed(tuple(means), tuple(stds), np.concatenate(fingerprints))


def fingerprints_of(images: npt.NDArray[Any]) -> Fingerprints:
    """Return a hash of each image's content."""
    digests = (hashlib.blake2b(image, digest_size=_FINGERPRINT_BYTES).digest() for image in images)
    return np.frombuffer(b"".join(digests), dtype=np.uint64)


def duplicates(
    plan: DatasetPlan,
    raw: LabelledImages,
    rows: Mapping[PartName, Int64Array],
    fingerprints: Mapping[PartName, Fingerprints],
) -> list[str]:
    """Return a warning for each two parts that share images.

    Raise ConfigError if the user divided them, unless params.yaml allows it.
    """
    dataset, warnings = plan.dataset, []
    is_users = isinstance(dataset, LocalDataset | OwnDataset) and not dataset.allow_duplicates
    what = "images" if raw.dtype == "uint8" else "items"
    for first, second in combinations(rows, 2):
        shared = np.flatnonzero(np.isin(fingerprints[second], fingerprints[first]))
        if not len(shared):
            continue
        same = fingerprints[first] == fingerprints[second][shared[0]]
        pair = [rows[first][same][0], rows[second][shared[0]]]
        names = " and ".join(raw.origins[row] if raw.origins else f"row {row}" for row in pair)
        warning = f"{second} {what} that are {first} {what} too: {len(shared):,} of {len(rows[second]):,}"
        if is_users and {first, second} <= raw.own_parts.keys():
            raise ConfigError(
                f"data set '{plan.name}': {warning}, such as {names}. A test on them says nothing about new images. "
                f"Keep them in one part, or set datasets.{plan.name}.allow_duplicates: true in params.yaml"
            )
        warnings.append(f"{warning}, such as {names}")
    return warnings
