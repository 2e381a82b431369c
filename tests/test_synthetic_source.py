"""The sources that need no files: scikit-learn's digits, and images made from the seed."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import digits_plan
from image_files import plan_of
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier

from photofinish.data.raw_data import RawData, read_raw
from photofinish.data.sources import download

DIGITS = digits_plan()


def make(folder: Path, **changes: Any) -> RawData:
    settings = {"images": 500, "shape": [3, 9, 7], "classes": 5, "validation": 0.1, "test": 0.1}
    return read_raw(plan_of(source="synthetic", **settings | changes), folder)


def test_digits_are_scikit_learns_with_their_shades_spread_over_a_byte(tmp_path: Path) -> None:
    download(DIGITS, tmp_path)
    digits, raw = load_digits(), read_raw(DIGITS, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["source.json"]
    images = raw.inputs[np.arange(1797)]
    assert (images.shape, images.dtype) == ((1797, 1, 8, 8), np.uint8)
    assert np.array_equal(images[:, 0], np.round(digits.images * 255 / 16))
    assert np.array_equal(raw.labels, digits.target)
    assert raw.class_names == tuple("0123456789")


@pytest.mark.parametrize(
    ("seed", "sha256"),
    [
        (0, "45edaa8288a18a1045a1879883ad01f68df513b017295b964294bbde941aa7c2"),
        (3, "0eb0e498ed6bdfd8c9c9f53bec15364d5f7b9c136265a636137d6e11de0c0c80"),
    ],
)
def test_images_have_these_bytes_on_every_machine(tmp_path: Path, seed: int, sha256: str) -> None:
    images = make(tmp_path, seed=seed)
    assert hashlib.sha256(images.inputs[np.array([0, 1, 499])].tobytes()).hexdigest() == sha256
    assert images.class_names == ("0", "1", "2", "3", "4")
    assert np.bincount(images.labels).tolist() == [100] * 5
    assert len({image.tobytes() for image in images.inputs[np.arange(500)]}) == 500
    more = make(tmp_path, seed=seed, images=1000)
    assert np.array_equal(more.inputs[np.arange(500)], images.inputs[np.arange(500)])


@pytest.mark.parametrize(("shape", "classes"), [([3, 32, 32], 10), ([1, 1, 300], 3)])
def test_a_linear_classifier_learns_the_classes(
    tmp_path: Path, shape: list[int], classes: int
) -> None:
    images = make(tmp_path, shape=shape, images=3000, classes=classes)
    assert images.inputs[np.array([19, 3])].shape == (2, *shape)
    pixels = images.inputs[np.arange(3000)].reshape(3000, -1) / 255 - 0.5
    classifier = SGDClassifier(max_iter=5, tol=None, random_state=0)
    classifier.fit(pixels[:2000], images.labels[:2000])
    assert classifier.score(pixels[2000:], images.labels[2000:]) > 0.95
