"""Where raw data comes from, by the source's name: fetched whole or not at all, read back as it was fetched.

Here are also the two that need no files of others: scikit-learn's digits, and images made from the seed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from photofinish.data import local_images, own_source, torchvision_source
from photofinish.data.images import Int64Array, LabelledImages, UInt8Array, save_array
from photofinish.errors import UserError
from photofinish.files import (
    explained_when_full,
    is_as_recorded,
    sha256_of_file,
    whole_folder,
    write_json_atomically,
    write_text_atomically,
)
from photofinish.params.catalogue import DATASETS
from photofinish.params.datasets import Dataset, DatasetPlan, OwnDataset, SyntheticDataset

_CHECKSUMS = "sha256.json"
_IMAGES, _LABELS = "images.npy", "labels.npy"
_BRIGHTEST = 16
_KNOTS = 4  # a pattern is drawn through so many random shades a side
_BYTES_A_WORD = 8
_PATTERN, _NOISE = 0, 1  # what a stream of random numbers is for


def download(plan: DatasetPlan, folder: Path) -> None:
    """Fetch the raw files into `folder`, which appears under its name only when it is whole."""
    with whole_folder(folder) as unfinished, explained_when_full(unfinished, f"data set '{plan.name}'"):
        _source_of(plan.dataset).fetch(plan, unfinished)
        files = (path for path in unfinished.rglob("*") if path.is_file())
        checksums = {str(path.relative_to(unfinished)): sha256_of_file(path) for path in files}
        write_json_atomically(unfinished / _CHECKSUMS, checksums)


def read_raw(plan: DatasetPlan, folder: Path) -> LabelledImages:
    """Read the raw data, checked against the checksums that `download` took."""
    listing = folder / _CHECKSUMS
    try:
        checksums = json.loads(listing.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{listing} can't be read ({error}): run `dvc repro --force download`") from error
    for name, expected in checksums.items():
        path = folder / name
        if not is_as_recorded(path, expected):
            raise UserError(f"{path} is missing or damaged: run `dvc repro --force download`")
    return _source_of(plan.dataset).read(plan, folder)


def fetch_digits(_plan: DatasetPlan, folder: Path) -> None:
    """Store the 1,797 images of 8x8 pixels that come with scikit-learn."""
    from sklearn.datasets import load_digits  # takes seconds to import, so only here

    digits = load_digits()
    save_array(folder / _IMAGES, digits.images.astype(np.uint8))
    save_array(folder / _LABELS, digits.target.astype(np.int64))


def read_digits(_plan: DatasetPlan, folder: Path) -> LabelledImages:
    """The digits, whose raw values run from 0 to 16, as bytes that fill their range."""
    shades = np.load(folder / _IMAGES)
    images = np.round(shades * (255 / _BRIGHTEST)).astype(np.uint8)[:, np.newaxis]
    return LabelledImages(images.shape[1:], np.load(folder / _LABELS), tuple("0123456789"), lambda rows: images[rows])


def fetch_synthetic(plan: DatasetPlan, folder: Path) -> None:
    """Store just what the images follow from, whenever they are read."""
    dataset = _synthetic(plan)
    recipe = {"images": dataset.images, "shape": dataset.shape, "classes": dataset.classes, "seed": dataset.seed}
    write_text_atomically(folder / "recipe.json", json.dumps(recipe, indent=2) + "\n")


def read_synthetic(plan: DatasetPlan, _folder: Path) -> LabelledImages:
    """A smooth pattern a class, half hidden by noise of every image's own.

    Each image follows from the seed and its row alone, whichever are made together, and from whole numbers only, so
    that it has the same bytes on every machine.
    """
    dataset = _synthetic(plan)

    def read(rows: Int64Array) -> UInt8Array:
        classes, pattern_of = np.unique(rows % dataset.classes, return_inverse=True)
        patterns = np.stack([_pattern(dataset, int(number)) for number in classes]) >> 1
        images = np.empty((len(rows), *dataset.shape), dtype=np.uint8)
        for image, row, pattern in zip(images, rows, pattern_of, strict=True):
            noise = _random_bytes(dataset.seed, _NOISE, int(row), image.size).reshape(dataset.shape)
            np.add(noise >> 1, patterns[pattern], out=image)
        return images

    labels = np.arange(dataset.images, dtype=np.int64) % dataset.classes
    return LabelledImages(dataset.shape, labels, tuple(map(str, range(dataset.classes))), read)


def _synthetic(plan: DatasetPlan) -> SyntheticDataset:
    assert isinstance(plan.dataset, SyntheticDataset)
    return plan.dataset


def _pattern(dataset: SyntheticDataset, number: int) -> UInt8Array:
    """A few random shades, with straight lines between them."""
    channels, height, width = dataset.shape
    knots = _random_bytes(dataset.seed, _PATTERN, number, channels * _KNOTS * _KNOTS).astype(np.int64)
    down, across = _weights(height), _weights(width)
    drawn: Int64Array = down @ knots.reshape(channels, _KNOTS, _KNOTS) @ across.T
    shades: Int64Array = drawn // (down[0].sum() * across[0].sum())
    return shades.astype(np.uint8)


def _weights(side: int) -> Int64Array:
    """How much each knot counts for each pixel of a side, in whole numbers that have the same sum for each pixel."""
    steps = max(1, side - 1)
    positions = np.arange(side, dtype=np.int64)[:, np.newaxis] * (_KNOTS - 1)
    weights: Int64Array = np.maximum(0, steps - np.abs(positions - np.arange(_KNOTS) * steps))
    return weights


def _random_bytes(seed: int, purpose: int, number: int, count: int) -> UInt8Array:
    """The first of a stream that is the purpose's and the number's own; NumPy promises its raw words for good."""
    key: npt.NDArray[np.uint64] = np.array([2 * seed + purpose, number], dtype=np.uint64)
    words = np.random.Philox(key=key).random_raw(-(-count // _BYTES_A_WORD))
    return np.asarray(words, dtype="<u8").view(np.uint8)[:count]


class Source(NamedTuple):
    """A way to come by raw data, and to read it."""

    fetch: Callable[[DatasetPlan, Path], None]
    """all the files into a folder that is empty"""
    read: Callable[[DatasetPlan, Path], LabelledImages]
    """the images, from that folder alone"""


SOURCES: dict[str, Source] = {
    "digits": Source(fetch_digits, read_digits),
    **dict.fromkeys(DATASETS, Source(torchvision_source.fetch, torchvision_source.read)),
    "csv": Source(local_images.fetch_csv, local_images.read_copies),
    "folder": Source(local_images.fetch_folder, local_images.read_copies),
    "synthetic": Source(fetch_synthetic, read_synthetic),
}
_OWN = Source(own_source.fetch, own_source.read)


def _source_of(dataset: Dataset) -> Source:
    return _OWN if isinstance(dataset, OwnDataset) else SOURCES[dataset.source]
