"""A folder per class is read like by torchvision's ImageFolder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_files import BLUE, GREEN, RED, plan_of, through_pil, write_picture

from photofinish.data.raw_data import RawData, read_raw
from photofinish.errors import ConfigError

IN_PARTS = {"parts": {"train": "photos/train", "test": "photos/test"}, "validation": 1}


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's folder with photos of two classes, one of them with a folder within."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    files = {"owl/b.png": RED, "owl/a.PNG": GREEN, "owl/barn/a.jpeg": BLUE, "cat/a.png": BLUE}
    for name, colour in files.items():
        write_picture(tmp_path / "photos" / name, colour)
    return tmp_path / "photos"


def read(photos: Path, **settings: Any) -> RawData:
    settings = settings or {"path": "photos", "validation": 1, "test": 1}
    return read_raw(plan_of(source="folder", **settings), photos.parent / "data/raw/birds")


def test_each_folder_is_a_class_with_all_images_below_it(photos: Path) -> None:
    (photos / "owl/notes.txt").touch()
    write_picture(photos.parent / "outside/x.png")
    (photos / "owl/linked").symlink_to("../../outside")
    images = read(photos)
    assert images.class_names == ("cat", "owl")
    assert images.labels.tolist() == [0, 1, 1, 1, 1]
    names = [images.name_of(row) for row in range(5)]
    files = ["cat/a.png", "owl/a.PNG", "owl/b.png", "owl/barn/a.jpeg", "owl/linked/x.png"]
    assert names == [f"photos/{file}" for file in files]
    expected = [through_pil(photos / file) for file in files]
    assert np.array_equal(images.inputs[np.arange(5)], np.stack(expected))
    assert images.own_parts == {}


def test_each_part_can_have_its_own_folder_with_the_classes_of_the_training(photos: Path) -> None:
    (photos / "train").mkdir()
    for name in ("owl", "cat"):
        (photos / name).rename(photos / "train" / name)
    write_picture(photos / "test/owl/z.png", GREEN)
    write_picture(photos / "test/cat/z.png", RED)
    images = read(photos, **IN_PARTS)
    assert images.class_names == ("cat", "owl")
    parts = {part: rows.tolist() for part, rows in images.own_parts.items()}
    assert parts == {"train": [0, 1, 2, 3], "test": [4, 5]}
    assert images.labels[images.own_parts["test"]].tolist() == [0, 1]
    assert images.inputs[np.array([5])][0, :, 0, 0].tolist() == list(GREEN)
    write_picture(photos / "test/own/a.png")
    with pytest.raises(ConfigError, match=r"photos/test/own/a\.png: 'own' is no class .*'owl'"):
        read(photos, **IN_PARTS)


def test_faulty_files_are_reported_together(photos: Path) -> None:
    (photos / "owl/empty.png").touch()
    (photos / "owl/broken.png").symlink_to("nowhere.png")
    write_picture(photos / "owl/wide.png", width=40)
    with pytest.raises(ConfigError) as caught:
        read(photos)
    for name in ("owl/empty.png", "owl/broken.png", "owl/wide.png"):
        assert f"\nphotos/{name}: " in str(caught.value)
    (photos / "emu").mkdir()
    with pytest.raises(OSError, match="no valid file for the classes emu"):
        read(photos)
