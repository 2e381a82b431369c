"""A CSV of images: read as it is written, and refused with the first faulty rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_files import BLUE, GREEN, RED, picture, plan_of, run_split, through_pil, write_picture
from PIL import Image
from pydantic import ValidationError

from photofinish.data.images import LabelledImages
from photofinish.data.sources import download, read_raw
from photofinish.errors import ConfigError


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's folder with three images in photos/."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    for name, colour in (("red.png", RED), ("green.png", GREEN), ("blue.png", BLUE)):
        write_picture(tmp_path / "photos" / name, colour)
    return tmp_path / "photos"


def write_csv(photos: Path, *lines: str, name: str = "birds.csv") -> None:
    (photos / name).write_text("\n".join(lines) + "\n", encoding="utf-8")


def csv_settings(**settings: Any) -> dict[str, Any]:
    drawn = {} if settings.keys() & {"split_column", "parts"} else {"validation": 1, "test": 1}
    place = {} if "parts" in settings else {"path": "photos/birds.csv"}
    return {"source": "csv", **place, **drawn, **settings}


def read(photos: Path, **settings: Any) -> LabelledImages:
    plan = plan_of(**csv_settings(**settings))
    raw = photos.parent / "data" / "raw" / "birds"
    download(plan, raw)
    return read_raw(plan, raw)


def labels_of(images: LabelledImages) -> list[str]:
    return [images.class_names[label] for label in images.labels]


def test_images_and_labels_are_those_of_the_rows(photos: Path) -> None:
    write_csv(photos, "path,label", "red.png,warm", "green.png,cold", "blue.png,cold")
    images = read(photos)
    assert images.class_names == ("cold", "warm")
    assert labels_of(images) == ["warm", "cold", "cold"]
    assert images.shape == (3, 6, 8)
    assert images.origins == ["red.png", "green.png", "blue.png"]
    assert images.read(np.array([2, 0]))[:, :, 0, 0].tolist() == [list(BLUE), list(RED)]


@pytest.mark.parametrize(
    ("data", "settings", "labels"),
    [
        (b"path,label\nred.png,NA\ngreen.png,001\nblue.png,1.0\n", {}, ["NA", "001", "1.0"]),
        (b"\xef\xbb\xbfpath,label\r\nred.png,h\xc3\xa4n\r\n\r\ngreen.png,cat\r\n", {}, ["hän", "cat"]),
        (b'"path","label"\n"red.png","h\xc3\xa4n"\n\n\n"green.png","cat"', {}, ["hän", "cat"]),
        (b"id,label,path\n1,owl,red.png\n2,cat,green.png\n", {}, ["owl", "cat"]),
        (b'path,label\nred.png,"owl, ""barn"""\ngreen.png,cat\n', {}, ['owl, "barn"', "cat"]),
        (b"file,kind\nred.png,owl\n", {"path_column": "file", "label_column": "kind"}, ["owl"]),
        (b"path,label\nred.png,owl\ngreen.png,cat\n", {"classes": ["owl", "cat", "emu"]}, ["owl", "cat"]),
    ],
    ids=["numbers stay text", "as Excel saves it", "quoted", "other columns", "commas", "named columns", "classes"],
)
def test_every_usual_way_to_write_a_csv_is_read(
    photos: Path, data: bytes, settings: dict[str, Any], labels: list[str]
) -> None:
    (photos / "birds.csv").write_bytes(data)
    images = read(photos, **settings)
    assert labels_of(images) == labels
    assert images.class_names == tuple(settings.get("classes", sorted(labels)))


@pytest.mark.parametrize("validation", ["validation", "val", "Valid", "VAL"])
def test_a_column_can_name_the_parts(photos: Path, validation: str) -> None:
    write_csv(photos, "path,label,split", "green.png,a,TEST", "red.png,a,train", f"blue.png,a,{validation}")
    parts = read(photos, split_column="split").own_parts
    assert {part: rows.tolist() for part, rows in parts.items()} == {"test": [0], "train": [1], "validation": [2]}


def test_each_part_can_have_its_own_csv(photos: Path) -> None:
    write_picture(photos.parent / "more" / "red.png", GREEN)
    write_csv(photos, "path,label", "red.png,owl", "blue.png,cat", name="train.csv")
    write_csv(photos.parent / "more", "path,label", "red.png,owl", name="test.csv")
    images = read(photos, parts={"train": "photos/train.csv", "test": "more/test.csv"}, validation=1)
    assert {part: rows.tolist() for part, rows in images.own_parts.items()} == {"train": [0, 1], "test": [2]}
    assert images.read(np.array([0, 2]))[:, :, 0, 0].tolist() == [list(RED), list(GREEN)]


KINDS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "JPEG": ("a.jpg", lambda path: picture().save(path, quality=95)),
    "grey": ("a.png", lambda path: picture().convert("L").save(path)),
    "grey with transparency": ("a.png", lambda path: picture().convert("LA").save(path)),
    "palette": ("a.gif", lambda path: picture().convert("P").save(path)),
    "transparency": ("a.png", lambda path: picture().convert("RGBA").save(path)),
    "CMYK": ("a.jpg", lambda path: picture().convert("CMYK").save(path)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("channels", [3, 1])
def test_an_image_of_any_kind_is_what_torchvisions_loader_makes_of_it(photos: Path, kind: str, channels: int) -> None:
    name, save = KINDS[kind]
    save(photos / name)
    write_csv(photos, "path,label", f"{name},owl")
    images = read(photos, channels=channels)
    assert images.shape == (channels, 6, 8)
    assert np.array_equal(images.read(np.array([0]))[0], through_pil(photos / name, "RGB" if channels == 3 else "L"))


def test_a_photo_is_turned_as_its_exif_data_say_unless_they_are_damaged(photos: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # lies on its side
    picture().save(photos / "a.jpg", exif=exif)
    write_csv(photos, "path,label", "a.jpg,owl")
    images = read(photos)
    assert images.shape == (3, 8, 6)
    assert np.array_equal(images.read(np.array([0]))[0], np.rot90(through_pil(photos / "a.jpg"), -1, axes=(1, 2)))
    picture().save(photos / "a.jpg", exif=b"Exif\0\0nonsense")
    assert read(photos).shape == (3, 6, 8)


def test_images_of_many_sizes_are_resized_to_the_size_that_is_set(photos: Path) -> None:
    write_picture(photos / "wide.png", GREEN, width=40, height=10)
    write_csv(photos, "path,label", "red.png,owl", "wide.png,cat")
    with pytest.raises(ConfigError, match=r"(?s)birds\.csv:3: .*datasets\.birds\.size in params\.yaml"):
        read(photos)
    images = read(photos, size=[4, 5])
    assert images.shape == (3, 4, 5)
    assert np.array_equal(images.read(np.array([1]))[0], through_pil(photos / "wide.png", size=(4, 5)))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no rows"),
        (b"path,label\n", "no rows"),
        (b"path,label\nred.png,h\xe4n\n", "can't be read as CSV in UTF-8"),
        (b"path,lable\nred.png,owl\n", "no column 'label'; did you mean 'lable'?"),
        (b"path;label\nred.png;owl\n", "no column 'path'"),
    ],
)
def test_a_file_that_is_no_such_csv_is_refused_by_name(photos: Path, data: bytes, message: str) -> None:
    (photos / "birds.csv").write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        read(photos)
    assert "photos/birds.csv" in str(caught.value)
    assert message in str(caught.value)


BAD_ROWS = {
    "missing file": "nowhere.png,owl,train",
    "empty path": ",owl,train",
    "empty label": "green.png,,train",
    "unknown label": "green.png,olw,train",
    "unknown part": "green.png,owl,tset",
    "no part": "green.png,owl,",
    "cell missing": "green.png,owl",
    "cell too many": "green.png,owl,train,4",
    "zero bytes": "empty.png,owl,train",
    "no image": "text.png,owl,train",
    "cut short": "cut.jpg,owl,train",
    "folder": "folder,owl,train",
    "name that no file can have": f"{'x' * 300}.png,owl,train",
}


@pytest.mark.parametrize("row", BAD_ROWS.values(), ids=BAD_ROWS)
def test_a_faulty_row_is_reported_with_its_line_by_the_stage(photos: Path, row: str) -> None:
    (photos / "empty.png").touch()
    (photos / "text.png").write_text("an owl")
    (photos / "folder").mkdir()
    data = write_picture(photos / "whole.jpg", width=64, height=64).read_bytes()
    (photos / "cut.jpg").write_bytes(data[: len(data) // 2])
    write_csv(photos, "path,label,split", "red.png,owl,train", row, "blue.png,owl,test")
    with pytest.raises(ConfigError, match=r"\nphotos/birds\.csv:3: "):
        read(photos, split_column="split", classes=["owl"], validation=1)


def test_the_first_ten_faulty_rows_are_reported_in_one_error_and_nothing_is_written(photos: Path) -> None:
    rows = ["red.png,owl", "red.png,", *(f"{number}.png,owl" for number in range(20))]
    write_csv(photos, "path,label", *rows)
    ran = run_split(plan_of(**csv_settings()), photos.parent)
    assert ran.returncode == 2
    lines = [line for line in ran.stderr.splitlines() if line.startswith("photos/birds.csv:")]
    assert [int(line.split(":")[1]) for line in lines] == list(range(3, 13))
    assert not (photos.parent / "data/splits").exists()


def test_a_label_that_no_training_row_has_is_refused(photos: Path) -> None:
    write_csv(photos, "path,label,split", "red.png,owl,train", "blue.png,own,test", "green.png,owl,val")
    with pytest.raises(ConfigError, match=r"birds\.csv:3: 'own' is no class .*did you mean 'owl'"):
        read(photos, split_column="split")


@pytest.mark.parametrize(
    "settings",
    [
        {"split_column": "split", "parts": {"train": "a.csv", "test": "b.csv"}, "validation": 1},
        {"classes": ["owl", "cat", "owl"]},
        {"classes": []},
        {"parts": {"train": "a.csv", "test": "b.csv"}, "validation": 1, "test": 1},
        {"parts": {"train": "a.csv"}, "validation": 1},
        {"path": "a.csv", "parts": {"train": "a.csv"}, "validation": 1, "test": 1},
    ],
)
def test_settings_that_contradict_themselves_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        plan_of(**csv_settings(**settings))
