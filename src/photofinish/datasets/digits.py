"""The handwritten digits that come with scikit-learn: 1,797 images of 8x8 pixels, no download needed."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from photofinish.datasets.images import LabelledImages, from_array

_IMAGES, _LABELS = "images.npy", "labels.npy"
_BRIGHTEST = 16


def fetch(folder: Path) -> None:
    from sklearn.datasets import load_digits  # takes seconds to import, so only here

    digits = load_digits()
    np.save(folder / _IMAGES, digits.images.astype(np.uint8))
    np.save(folder / _LABELS, digits.target.astype(np.int64))


def read(folder: Path) -> LabelledImages:
    """The raw values run from 0 to 16; here they fill the range of a byte."""
    shades = np.load(folder / _IMAGES)
    images = np.round(shades * (255 / _BRIGHTEST)).astype(np.uint8)[:, np.newaxis]
    return from_array(images, np.load(folder / _LABELS), tuple("0123456789"))
