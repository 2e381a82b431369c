"""Made images: the same whenever and however they are read, of any shape, and of classes that can be learned."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_files import plan_of
from sklearn.linear_model import SGDClassifier

from photofinish.data.images import LabelledImages
from photofinish.data.sources import download, read_raw


def made(folder: Path, **changes: Any) -> LabelledImages:
    chosen = {"images": 500, "shape": [3, 9, 7], "classes": 5, "validation": 0.1, "test": 0.1, **changes}
    plan = plan_of(source="synthetic", **chosen)
    download(plan, folder / "raw")
    return read_raw(plan, folder / "raw")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> LabelledImages:
    return made(tmp_path_factory.mktemp("synthetic"))


def test_images_have_the_shape_and_the_classes_that_are_asked_for(images: LabelledImages) -> None:
    everything = images.read(np.arange(500))
    assert (everything.shape, everything.dtype, images.shape) == ((500, 3, 9, 7), np.uint8, (3, 9, 7))
    assert np.bincount(images.labels).tolist() == [100] * 5
    assert len(images.class_names) == 5
    assert len({image.tobytes() for image in everything}) == 500


@pytest.mark.parametrize(
    ("seed", "sha256"),
    [
        (0, "45edaa8288a18a1045a1879883ad01f68df513b017295b964294bbde941aa7c2"),
        (3, "0eb0e498ed6bdfd8c9c9f53bec15364d5f7b9c136265a636137d6e11de0c0c80"),
    ],
)
def test_images_have_these_bytes_on_every_machine(tmp_path: Path, seed: int, sha256: str) -> None:
    images = made(tmp_path, seed=seed)
    assert hashlib.sha256(images.read(np.array([0, 1, 499])).tobytes()).hexdigest() == sha256
    assert images.class_names == ("0", "1", "2", "3", "4")


def test_another_seed_makes_other_images(images: LabelledImages, tmp_path: Path) -> None:
    others = made(tmp_path, seed=1)
    assert not np.array_equal(others.read(np.array([0])), images.read(np.array([0])))


def test_more_images_are_the_same_ones_and_others(images: LabelledImages, tmp_path: Path) -> None:
    more = made(tmp_path, images=1000)
    assert np.array_equal(more.read(np.arange(500)), images.read(np.arange(500)))


@pytest.mark.parametrize("shape", [[1, 1, 1], [1, 1, 300], [4, 2, 3], [1, 257, 5]])
def test_any_shape_will_do(tmp_path: Path, shape: list[int]) -> None:
    images = made(tmp_path, shape=shape, images=20)
    assert images.read(np.array([19, 3])).shape == (2, *shape)


def test_patterns_are_smooth_and_reach_every_pixel(tmp_path: Path) -> None:
    images = made(tmp_path, shape=[1, 32, 32], images=2000, classes=2)
    patterns = np.stack([images.read(np.arange(kind, 2000, 2)).mean(axis=0)[0] for kind in (0, 1)])
    steps = np.abs(np.diff(patterns, axis=2))
    assert patterns.std() > 10
    assert steps.max() < 32


@pytest.mark.parametrize(("shape", "classes"), [([1, 8, 8], 10), ([3, 32, 32], 10), ([1, 6, 6], 3)])
def test_a_linear_classifier_learns_the_classes(tmp_path: Path, shape: list[int], classes: int) -> None:
    images = made(tmp_path, shape=shape, images=3000, classes=classes)
    pixels = images.read(np.arange(3000)).reshape(3000, -1) / 255 - 0.5
    learned = SGDClassifier(max_iter=5, tol=None, random_state=0).fit(pixels[:2000], images.labels[:2000])
    assert learned.score(pixels[2000:], images.labels[2000:]) > 0.95
