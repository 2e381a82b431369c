"""The handwritten digits that come with scikit-learn: 1,797 images of 8x8 pixels, no download needed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from photofinish.data import csv_source, folder_source, synthetic, torchvision_source
from photofinish.data.images import LabelledImages, from_array
from photofinish.data.listed_images import read_copies
from photofinish.errors import UserError
from photofinish.files import sha256_of_file, write_json_atomically
from photofinish.params.datasets import DatasetPlan
from photofinish.params.torchvision_names import DATASETS

_IMAGES, _LABELS = "images.npy", "labels.npy"
_BRIGHTEST = 16


def fetch_digits(_plan: DatasetPlan, folder: Path) -> None:
    from sklearn.datasets import load_digits  # takes seconds to import, so only here

    digits = load_digits()
    np.save(folder / _IMAGES, digits.images.astype(np.uint8))
    np.save(folder / _LABELS, digits.target.astype(np.int64))


def read_digits(_plan: DatasetPlan, folder: Path) -> LabelledImages:
    """The raw values run from 0 to 16; here they fill the range of a byte."""
    shades = np.load(folder / _IMAGES)
    images = np.round(shades * (255 / _BRIGHTEST)).astype(np.uint8)[:, np.newaxis]
    return from_array(images, np.load(folder / _LABELS), tuple("0123456789"))


_CHECKSUMS = "sha256.json"


@dataclass(frozen=True)
class Source:
    fetch: Callable[[DatasetPlan, Path], None]
    """all the files into a folder that is empty"""
    read: Callable[[DatasetPlan, Path], LabelledImages]
    """the images, from that folder alone"""


SOURCES: dict[str, Source] = {
    "digits": Source(fetch_digits, read_digits),
    **dict.fromkeys(DATASETS, Source(torchvision_source.fetch, torchvision_source.read)),
    "csv": Source(csv_source.fetch, read_copies),
    "folder": Source(folder_source.fetch, read_copies),
    "synthetic": Source(synthetic.fetch, synthetic.read),
}


def download(plan: DatasetPlan, folder: Path) -> None:
    """Fetch the raw files into `folder`, which appears under its name only when it is whole."""
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        _source_of(plan).fetch(plan, unfinished)
        files = sorted(path for path in unfinished.rglob("*") if path.is_file())
        checksums = {str(path.relative_to(unfinished)): sha256_of_file(path) for path in files}
        write_json_atomically(unfinished / _CHECKSUMS, checksums)
        shutil.rmtree(folder, ignore_errors=True)
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def read_raw(plan: DatasetPlan, folder: Path) -> LabelledImages:
    """Read the raw data, checked against the checksums that `download` took."""
    listing = folder / _CHECKSUMS
    try:
        checksums = json.loads(listing.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{listing} can't be read ({error}): run `dvc repro --force download`") from error
    for name, expected in checksums.items():
        path = folder / name
        if not path.is_file() or sha256_of_file(path) != expected:
            raise UserError(f"{path} is missing or damaged: run `dvc repro --force download`")
    return _source_of(plan).read(plan, folder)


def _source_of(plan: DatasetPlan) -> Source:
    return SOURCES[plan.dataset.source]
