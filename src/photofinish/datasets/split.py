"""Divide raw data into training, validation and test parts, and pack each into one file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sklearn.model_selection import train_test_split

from photofinish.datasets.images import Int64Array, LabelledImages, UInt8Array
from photofinish.datasets.packed import MANIFEST, Manifest, PartName, images_file, labels_file, rows_file
from photofinish.errors import MistakeError
from photofinish.files import sha256_of_file, write_text_atomically
from photofinish.params import Dataset


def split(dataset: Dataset, raw: LabelledImages, folder: Path) -> Manifest:
    folder.mkdir(parents=True, exist_ok=True)
    rows = divide(raw.labels, validation=dataset.validation, test=dataset.test, seed=dataset.seed)
    for part, chosen in rows.items():
        np.save(folder / images_file(part), raw.images[chosen])
        np.save(folder / labels_file(part), raw.labels[chosen])
        np.save(folder / rows_file(part), chosen)
    mean, std = _mean_and_std(raw.images[rows["train"]])
    manifest = Manifest(
        class_names=raw.class_names,
        shape=(raw.images.shape[1], raw.images.shape[2], raw.images.shape[3]),
        counts={part: len(chosen) for part, chosen in rows.items()},
        mean=mean,
        std=std,
        sha256={path.name: sha256_of_file(path) for path in sorted(folder.glob("*.npy"))},
    )
    write_text_atomically(folder / MANIFEST, manifest.model_dump_json(indent=2) + "\n")
    return manifest


def divide(labels: Int64Array, *, validation: float | int, test: float | int, seed: int) -> dict[PartName, Int64Array]:
    """Row numbers of each part: stratified by label, decided by the seed alone, in the raw data's order."""
    total = len(labels)
    counts = {"validation": _count(validation, total), "test": _count(test, total)}
    if total - sum(counts.values()) < 1:
        raise MistakeError(
            f"validation ({counts['validation']}) and test ({counts['test']}) leave nothing to train on: "
            f"the data set has {total} images; make them smaller in params.yaml"
        )
    rest = np.arange(total, dtype=np.int64)
    parts: dict[PartName, Int64Array] = {}
    names: tuple[PartName, ...] = ("test", "validation")
    for name in names:
        try:
            rest, chosen = train_test_split(
                rest, test_size=counts[name], random_state=seed, shuffle=True, stratify=labels[rest]
            )
        except ValueError as error:
            raise MistakeError(f"a {name} part of {counts[name]} images can't be drawn evenly: {error}") from None
        parts[name] = np.sort(chosen)
    return {"train": np.sort(rest), "validation": parts["validation"], "test": parts["test"]}


def _count(size: float | int, total: int) -> int:
    return size if isinstance(size, int) else max(1, round(size * total))


def _mean_and_std(images: UInt8Array) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Of each channel, on the scale from 0 to 1, exact: from how often each of the 256 values occurs."""
    values = np.arange(256) / 255
    means, stds = [], []
    for channel in range(images.shape[1]):
        share = np.bincount(images[:, channel].ravel(), minlength=256) / images[:, channel].size
        mean = float(share @ values)
        std = float(np.sqrt(share @ (values - mean) ** 2))
        means.append(mean)
        stds.append(std if std > 0 else 1.0)  # a channel of one value: dividing by it must be safe
    return tuple(means), tuple(stds)
