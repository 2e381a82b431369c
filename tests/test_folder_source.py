"""A folder a class: what torchvision's ImageFolder would read, refused with every problem in it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_files import BLUE, CALTECH, GREEN, RED, plan_of, run_download, through_pil, write_bomb, write_picture

from photofinish.data.images import LabelledImages
from photofinish.data.local_files import IMAGE_SUFFIXES
from photofinish.data.sources import download, read_raw
from photofinish.errors import MistakeError

IN_PARTS = {"parts": {"train": "photos/train", "test": "photos/test"}, "validation": 1}


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's folder with photos of two classes, one of them with a folder within."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    write_picture(tmp_path / "photos/owl/b.png", RED)
    write_picture(tmp_path / "photos/owl/a.PNG", GREEN)
    write_picture(tmp_path / "photos/owl/barn/a.jpeg", BLUE)
    write_picture(tmp_path / "photos/cat/a.png", BLUE)
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


def fetched(photos: Path, **settings: Any) -> LabelledImages:
    settings = settings or {"path": "photos", "validation": 1, "test": 1}
    plan = plan_of(source="folder", **settings)
    raw = photos.parent / "data" / "raw" / "birds"
    download(plan, raw)
    return read_raw(plan, raw)


def problems(photos: Path, **settings: Any) -> list[str]:
    """What the refusal says, a line a problem; nothing may have been written."""
    with pytest.raises(MistakeError) as caught:
        fetched(photos, **settings)
    assert list((photos.parent / "data" / "raw").iterdir()) == []
    return str(caught.value).splitlines()[1:]


def test_each_folder_is_a_class_with_all_that_is_below_it(photos: Path) -> None:
    images = fetched(photos)
    assert images.class_names == ("cat", "owl")
    assert images.labels.tolist() == [0, 1, 1, 1]
    expected = [through_pil(photos / name) for name in ("cat/a.png", "owl/a.PNG", "owl/b.png", "owl/barn/a.jpeg")]
    assert np.array_equal(images.read(np.arange(4)), np.stack(expected))
    assert images.own_parts == {}


def test_what_is_hidden_or_no_image_is_left_alone(photos: Path) -> None:
    write_picture(photos / ".thumbnails/a.png")
    write_picture(photos / "owl/.cache/a.png")
    write_picture(photos / "owl/.a.png")
    (photos / "owl/notes.txt").touch()
    (photos / "README").touch()
    (photos / "cat/a.heic").touch()
    images = fetched(photos)
    assert len(images.labels) == 4
    assert images.notes == ("files left out, for they are no images by their names: 2, such as photos/cat/a.heic",)


def test_a_part_may_have_a_folder_of_its_own(in_parts: Path) -> None:
    for part in ("train", "test"):
        (in_parts / part / "owl/notes.txt").touch()
    images = fetched(in_parts, **IN_PARTS)
    assert images.class_names == ("cat", "owl")
    assert {part: rows.tolist() for part, rows in images.own_parts.items()} == {"train": [0, 1, 2, 3], "test": [4, 5]}
    assert images.labels[images.own_parts["test"]].tolist() == [0, 1]
    assert images.read(np.array([5]))[0, :, 0, 0].tolist() == list(GREEN)
    others = "2, such as photos/train/owl/notes.txt"
    assert images.notes == (f"files left out, for they are no images by their names: {others}",)


def test_what_was_fetched_needs_the_users_files_no_longer(photos: Path) -> None:
    images = fetched(photos)
    shutil.rmtree(photos)
    assert images.read(np.array([2]))[0, :, 0, 0].tolist() == list(RED)


def test_image_files_end_as_torchvision_says() -> None:
    folder = pytest.importorskip("torchvision.datasets.folder")
    assert IMAGE_SUFFIXES == folder.IMG_EXTENSIONS


@pytest.mark.skipif(not CALTECH.is_dir(), reason=f"no real images at {CALTECH}")
def test_real_jpegs_are_those_of_torchvisions_image_folder(photos: Path) -> None:
    datasets = pytest.importorskip("torchvision.datasets")
    theirs = datasets.ImageFolder(CALTECH)
    images = fetched(photos, path=CALTECH, size=[20, 30], validation=0.2, test=0.2)
    assert images.class_names == tuple(theirs.classes)
    assert images.labels.tolist() == theirs.targets
    rows = np.array([0, 77, len(theirs) - 1])
    expected = [np.asarray(theirs[row][0].resize((30, 20), 2)).transpose(2, 0, 1) for row in rows]
    assert np.array_equal(images.read(rows), np.stack(expected))


def test_every_problem_is_told_at_once_and_nothing_is_written(photos: Path) -> None:
    (photos / "emu").mkdir()
    (photos / "emu/notes.txt").touch()
    (photos / "owl/empty.png").touch()
    (photos / "owl/text.png").write_text("an owl")
    data = write_picture(photos / "owl/cut.jpg", width=64, height=64).read_bytes()
    (photos / "owl/cut.jpg").write_bytes(data[: len(data) // 2])
    write_bomb(photos / "owl/bomb.png")
    (photos / "owl/round.png").symlink_to("round.png")
    (photos / "owl/broken.png").symlink_to("nowhere.png")
    (photos / "owl/same.png").symlink_to("b.png")
    write_picture(photos.parent / "outside/a.png")
    (photos / "owl/leaves.png").symlink_to("../../outside/a.png")
    (photos / "cat/elsewhere").symlink_to("../../outside")
    (photos / "owl/circle").symlink_to("..")
    os.mkfifo(photos / "cat/pipe.png")
    ran = run_download(plan_of(source="folder", path="photos", validation=1, test=1), photos.parent)
    assert (ran.returncode, ran.stdout) == (2, "")
    expected = {
        "photos/cat/elsewhere  is a link to a folder, which isn't followed: put the folder itself there",
        "photos/cat/pipe.png  cat/pipe.png is no file",
        f"photos/emu  has no images; their names end in {', '.join(IMAGE_SUFFIXES)}",
        f"photos/owl/bomb.png  {photos}/owl/bomb.png can't be read as an image",
        "photos/owl/broken.png  owl/broken.png: there is no such file",
        "photos/owl/circle  is a link to a folder",
        f"photos/owl/cut.jpg  {photos}/owl/cut.jpg can't be read as an image",
        "photos/owl/empty.png  owl/empty.png: the file is empty",
        "photos/owl/leaves.png  owl/leaves.png leads out of",
        "photos/owl/round.png  owl/round.png: ",
        "photos/owl/same.png  owl/same.png is listed before, photos/owl/b.png",
        f"photos/owl/text.png  {photos}/owl/text.png can't be read as an image",
    }
    told = ran.stderr.splitlines()
    assert told[0] == f"error: data set 'birds' has {len(expected)} problems; nothing was written"
    assert {start for start in expected if any(line.startswith(f"  {start}") for line in told)} == expected
    assert list((photos.parent / "data/raw").iterdir()) == []


def test_a_class_whose_name_has_room_nowhere_is_refused(photos: Path) -> None:
    (photos / "owl").rename(photos / ("owl" * 40))
    assert {line.split("  ")[-1] for line in problems(photos)} == {"the label has 120 characters, 100 are allowed"}


def test_a_folder_of_images_without_classes_is_refused(photos: Path) -> None:
    assert problems(photos, path="photos/owl/barn", validation=1, test=1) == [
        "  photos/owl/barn  has no folders in it: it must have a folder of images for each class"
    ]


def test_a_name_that_is_not_text_is_refused(photos: Path) -> None:
    (photos / "cat/a.png").rename(photos / os.fsdecode(b"cat/\xff\n.png"))
    assert problems(photos) == [
        "  photos/cat/\\udcff\\n.png  'cat/\\udcff\\n.png': the name is not UTF-8; give the file another one"
    ]


def test_a_class_that_is_only_tested_is_refused(in_parts: Path) -> None:
    write_picture(in_parts / "test/own/a.png")
    told = problems(in_parts, **IN_PARTS)
    assert len(told) == 1
    assert told[0].startswith("  photos/test/own  'own' is not among the class folders of the training part")
    assert "did you mean 'owl'?" in told[0]


def test_one_folder_for_two_parts_is_refused(in_parts: Path) -> None:
    (in_parts / "train/linked").symlink_to("owl")
    told = problems(in_parts, parts={"train": "photos/train", "test": "photos/test"}, validation=1)
    followed = "is a link to a folder, which isn't followed: put the folder itself there"
    assert told == [f"  photos/train/linked  {followed}"]  # without images, which isn't told besides
    (in_parts / "train/linked").unlink()
    for part in ("train", "test"):
        (in_parts / part / "emu").mkdir()
    told = problems(in_parts, parts={"train": "photos/train", "test": "photos/test"}, validation=1)
    none = f"has no images; their names end in {', '.join(IMAGE_SUFFIXES)}"
    assert told == [f"  photos/{part}/emu  {none}" for part in ("test", "train")]
    for part in ("train", "test"):
        (in_parts / part / "emu").rmdir()
    told = problems(in_parts, parts={"train": "photos/train", "test": "photos/train"}, validation=1)
    assert len(told) == 4
    assert all("in another part: train there, test here" in line for line in told)


def test_images_of_several_sizes_need_the_key_that_the_message_names(photos: Path) -> None:
    write_picture(photos / "cat/wide.png", width=40)
    told = problems(photos)
    assert len(told) == 1
    assert told[0].startswith(f"  {photos}  ")
    assert "set datasets.birds.size in params.yaml" in told[0]
    assert fetched(photos, path="photos", validation=1, test=1, size=16).shape == (3, 16, 16)
