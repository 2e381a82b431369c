"""A folder per class: what torchvision's ImageFolder reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_files import BLUE, CALTECH, GREEN, RED, plan_of, through_pil, write_picture
from torchvision import datasets
from torchvision.datasets.folder import IMG_EXTENSIONS

from photofinish.data.images import LabelledImages
from photofinish.data.local_files import IMAGE_SUFFIXES
from photofinish.data.sources import read_raw
from photofinish.errors import ConfigError

IN_PARTS = {"parts": {"train": "photos/train", "test": "photos/test"}, "validation": 1}


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's folder with photos of two classes, one of them with a folder within."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    for name, colour in (("owl/b.png", RED), ("owl/a.PNG", GREEN), ("owl/barn/a.jpeg", BLUE), ("cat/a.png", BLUE)):
        write_picture(tmp_path / "photos" / name, colour)
    return tmp_path / "photos"


@pytest.fixture
def in_parts(photos: Path) -> Path:
    """The same photos for training, and two others to test on."""
    inside = photos / "train"
    inside.mkdir()
    for name in ("owl", "cat"):
        (photos / name).rename(inside / name)
    write_picture(photos / "test/owl/z.png", GREEN)
    write_picture(photos / "test/cat/z.png", RED)
    return photos


def read(photos: Path, **settings: Any) -> LabelledImages:
    settings = settings or {"path": "photos", "validation": 1, "test": 1}
    return read_raw(plan_of(source="folder", **settings), photos.parent / "data/raw/birds")


def test_each_folder_is_a_class_with_all_images_below_it(photos: Path) -> None:
    write_picture(photos / ".thumbnails/a.png")
    write_picture(photos / "owl/.cache/a.png")
    (photos / "owl/notes.txt").touch()
    images = read(photos)
    assert images.class_names == ("cat", "owl")
    assert images.labels.tolist() == [0, 1, 1, 1]
    assert images.origins == ["cat/a.png", "owl/a.PNG", "owl/b.png", "owl/barn/a.jpeg"]
    expected = [through_pil(photos / name) for name in images.origins]
    assert np.array_equal(images.read(np.arange(4)), np.stack(expected))
    assert images.own_parts == {}


def test_links_are_followed_and_circles_end(photos: Path) -> None:
    write_picture(photos.parent / "outside/x.png")
    (photos / "cat/linked").symlink_to("../../outside")
    (photos / "owl/circle").symlink_to("..")
    assert read(photos).origins.count("cat/linked/x.png") == 1


def test_each_part_can_have_its_own_folder(in_parts: Path) -> None:
    images = read(in_parts, **IN_PARTS)
    assert images.class_names == ("cat", "owl")
    assert {part: rows.tolist() for part, rows in images.own_parts.items()} == {"train": [0, 1, 2, 3], "test": [4, 5]}
    assert images.labels[images.own_parts["test"]].tolist() == [0, 1]
    assert images.read(np.array([5]))[0, :, 0, 0].tolist() == list(GREEN)


def test_image_files_end_as_torchvision_says() -> None:
    assert IMAGE_SUFFIXES == IMG_EXTENSIONS


@pytest.mark.skipif(not CALTECH.is_dir(), reason=f"no real images at {CALTECH}")
def test_real_jpegs_are_those_of_torchvisions_image_folder(photos: Path) -> None:
    theirs = datasets.ImageFolder(CALTECH)
    images = read(photos, path=CALTECH, size=[20, 30], validation=0.2, test=0.2)
    assert images.class_names == tuple(theirs.classes)
    assert images.labels.tolist() == theirs.targets
    rows = np.array([0, 77, len(theirs) - 1])
    expected = [np.asarray(theirs[row][0].resize((30, 20), 2)).transpose(2, 0, 1) for row in rows]
    assert np.array_equal(images.read(rows), np.stack(expected))


def test_faulty_files_and_empty_classes_are_reported_together_by_their_paths(photos: Path) -> None:
    (photos / "emu").mkdir()
    (photos / "owl/empty.png").touch()
    (photos / "owl/text.png").write_text("an owl")
    (photos / "owl/broken.png").symlink_to("nowhere.png")
    write_picture(photos / "owl/wide.png", width=40)
    with pytest.raises(ConfigError) as caught:
        read(photos)
    for name in ("emu", "owl/empty.png", "owl/text.png", "owl/broken.png", "owl/wide.png"):
        assert f"\nphotos/{name}: " in str(caught.value)
    assert "datasets.birds.size" in str(caught.value)


def test_a_folder_of_images_without_classes_is_refused(photos: Path) -> None:
    with pytest.raises(ConfigError, match=r"photos/owl/barn: it must have a folder of images for each class"):
        read(photos, path="photos/owl/barn", validation=1, test=1)


def test_a_class_that_is_only_tested_is_refused(in_parts: Path) -> None:
    write_picture(in_parts / "test/own/a.png")
    with pytest.raises(ConfigError, match=r"photos/test/own/a\.png: 'own' is no class .*did you mean 'owl'"):
        read(in_parts, **IN_PARTS)
