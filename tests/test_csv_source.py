"""A CSV of images: read as it is written, refused with every problem in it, and kept in copies."""

from __future__ import annotations

import csv
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_files import (
    BLUE,
    CALTECH,
    GREEN,
    RED,
    picture,
    plan_of,
    run_download,
    through_pil,
    write_bomb,
    write_picture,
)
from PIL import Image
from pydantic import ValidationError

from photofinish.data.images import LabelledImages
from photofinish.data.sources import download, read_raw
from photofinish.errors import MistakeError

PATHS = ("red.png", "green.png", "blue.png")
COLOURS = dict(zip(PATHS, (RED, GREEN, BLUE), strict=True))


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's folder with three images in photos/."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    for name, colour in COLOURS.items():
        write_picture(tmp_path / "photos" / name, colour)
    return tmp_path / "photos"


def write_csv(photos: Path, *lines: str, name: str = "birds.csv") -> None:
    (photos / name).write_text("\n".join(lines) + "\n", encoding="utf-8")


def csv_settings(**settings: Any) -> dict[str, Any]:
    drawn = {} if settings.keys() & {"split_column", "parts"} else {"validation": 1, "test": 1}
    place = {} if "parts" in settings else {"path": "photos/birds.csv"}
    return {"source": "csv", **place, **drawn, **settings}


def fetched(photos: Path, **settings: Any) -> LabelledImages:
    plan = plan_of(**csv_settings(**settings))
    raw = photos.parent / "data" / "raw" / "birds"
    download(plan, raw)
    return read_raw(plan, raw)


def problems(photos: Path, **settings: Any) -> str:
    """What the refusal says; nothing may have been written."""
    with pytest.raises(MistakeError) as caught:
        fetched(photos, **settings)
    raw = photos.parent / "data" / "raw"
    assert not raw.exists() or list(raw.iterdir()) == []
    return str(caught.value)


def labels_of(images: LabelledImages) -> list[str]:
    return [images.class_names[label] for label in images.labels]


# -- what is right ------------------------------------------------------------------------------------


def test_images_and_labels_are_those_of_the_rows(photos: Path) -> None:
    write_csv(photos, "path,label", "red.png,warm", "green.png,cold", "blue.png,cold")
    images = fetched(photos)
    assert images.class_names == ("cold", "warm")
    assert labels_of(images) == ["warm", "cold", "cold"]
    assert images.shape == (3, 6, 8)
    read = images.read(np.array([2, 0]))
    assert read[:, :, 0, 0].tolist() == [list(BLUE), list(RED)]


def test_labels_stay_the_text_they_are(photos: Path) -> None:
    write_csv(photos, "path,label", "red.png,NA", "green.png,001", "blue.png,1.0")
    assert labels_of(fetched(photos)) == ["NA", "001", "1.0"]


@pytest.mark.parametrize(
    "data",
    [
        b"\xef\xbb\xbfpath,label\r\nred.png,h\xc3\xa4n\r\n\r\ngreen.png,cat\r\n",
        b'"path","label"\n"red.png","h\xc3\xa4n"\n\n\n"green.png","cat"',
        b"\nid,label,path\n1,h\xc3\xa4n,red.png\n2,cat,green.png\n",
    ],
    ids=["as Excel saves it", "quoted", "other columns"],
)
def test_every_usual_way_to_write_a_csv_reads_alike(photos: Path, data: bytes) -> None:
    (photos / "birds.csv").write_bytes(data)
    assert labels_of(fetched(photos)) == ["hän", "cat"]


def test_a_quoted_label_may_have_commas_and_quotes(photos: Path) -> None:
    write_csv(photos, "path,label", 'red.png,"owl, ""barn"""', "green.png,cat")
    assert labels_of(fetched(photos)) == ['owl, "barn"', "cat"]


def test_the_columns_may_have_other_names(photos: Path) -> None:
    write_csv(photos, "file;name,species", "red.png,owl", "green.png,cat")
    assert labels_of(fetched(photos, path_column="file;name", label_column="species")) == ["owl", "cat"]


@pytest.mark.parametrize("validation", ["validation", "val", "Valid", "VAL"])
def test_a_column_tells_the_parts(photos: Path, validation: str) -> None:
    write_csv(photos, "path,label,split", "green.png,a,TEST", "red.png,a,train", f"blue.png,a,{validation}")
    parts = fetched(photos, split_column="split").own_parts
    assert {part: rows.tolist() for part, rows in parts.items()} == {"test": [0], "train": [1], "validation": [2]}


def test_a_part_that_the_column_lacks_is_drawn(photos: Path) -> None:
    write_csv(photos, "path,label,split", "green.png,a,test", "red.png,a,train", "blue.png,a,train")
    assert fetched(photos, split_column="split", validation=1).own_parts.keys() == {"train", "test"}


def test_a_csv_a_part_may_each_lie_in_a_folder_of_its_own(photos: Path) -> None:
    write_picture(photos.parent / "more" / "red.png", GREEN)
    write_csv(photos, "path,label", "red.png,owl", "blue.png,cat", name="train.csv")
    write_csv(photos.parent / "more", "path,label", "red.png,owl", name="test.csv")
    images = fetched(photos, parts={"train": "photos/train.csv", "test": "more/test.csv"}, validation=1)
    assert {part: rows.tolist() for part, rows in images.own_parts.items()} == {"train": [0, 1], "test": [2]}
    assert images.read(np.array([0, 2]))[:, :, 0, 0].tolist() == [list(RED), list(GREEN)]


def test_classes_have_the_order_that_is_asked_for(photos: Path) -> None:
    write_csv(photos, "path,label", "red.png,owl", "green.png,cat")
    images = fetched(photos, classes=["owl", "cat", "emu"])
    assert (images.class_names, images.labels.tolist()) == (("owl", "cat", "emu"), [0, 1])


def test_what_was_fetched_needs_the_users_files_no_longer(photos: Path) -> None:
    write_csv(photos, "path,label", "red.png,owl", "green.png,cat")
    (photos / "link.png").symlink_to("blue.png")
    write_csv(photos, "path,label", "red.png,owl", "link.png,cat")
    images = fetched(photos)
    shutil.rmtree(photos)
    assert images.read(np.array([1]))[0, :, 0, 0].tolist() == list(BLUE)
    assert not any(path.is_symlink() for path in (photos.parent / "data").rglob("*"))


def save_transparent_palette(path: Path) -> None:
    image = picture().convert("P", palette=Image.Palette.ADAPTIVE)
    image.save(path, transparency=bytes([255, 0]))


KINDS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "colours": ("a.png", lambda path: picture().save(path)),
    "JPEG": ("a.jpg", lambda path: picture().save(path, quality=95)),
    "grey": ("a.png", lambda path: picture().convert("L").save(path)),
    "grey with transparency": ("a.png", lambda path: picture().convert("LA").save(path)),
    "black and white": ("a.png", lambda path: picture().convert("1").save(path)),
    "palette": ("a.gif", lambda path: picture().convert("P").save(path)),
    "palette with transparency": ("a.png", save_transparent_palette),
    "transparency": ("a.png", lambda path: picture().convert("RGBA").save(path)),
    "CMYK": ("a.jpg", lambda path: picture().convert("CMYK").save(path)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("channels", [3, 1])
def test_an_image_of_any_kind_is_what_torchvisions_loader_makes_of_it(photos: Path, kind: str, channels: int) -> None:
    name, save = KINDS[kind]
    save(photos / name)
    write_csv(photos, "path,label", f"{name},owl")
    images = fetched(photos, channels=channels)
    assert images.shape == (channels, 6, 8)
    assert np.array_equal(images.read(np.array([0]))[0], through_pil(photos / name, "RGB" if channels == 3 else "L"))


def test_a_photo_is_upright_as_its_exif_data_say(photos: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # lies on its side
    picture().save(photos / "a.jpg", exif=exif)
    write_csv(photos, "path,label", "a.jpg,owl")
    images = fetched(photos)
    assert images.shape == (3, 8, 6)
    assert np.array_equal(images.read(np.array([0]))[0], np.rot90(through_pil(photos / "a.jpg"), -1, axes=(1, 2)))


def test_damaged_exif_data_turn_nothing(photos: Path) -> None:
    picture().save(photos / "a.jpg", exif=b"Exif\0\0nonsense")
    write_csv(photos, "path,label", "a.jpg,owl")
    assert fetched(photos).shape == (3, 6, 8)


def test_images_of_several_frames_are_told_and_their_first_is_used(photos: Path) -> None:
    for name, kind in (("a.gif", "GIF"), ("b.tiff", "TIFF"), ("c.jpg", "MPO")):
        picture(RED).save(photos / name, format=kind, save_all=True, append_images=[picture(BLUE)])
    write_csv(photos, "path,label", "red.png,owl", "a.gif,owl", "b.tiff,owl", "c.jpg,owl")
    images = fetched(photos)
    assert images.notes == ("images of several frames, of which the first is used: 2, such as a.gif",)
    assert images.read(np.array([2]))[0, :, 0, 0].tolist() == list(RED)


def test_sixteen_bit_grey_keeps_its_shades(photos: Path) -> None:
    Image.fromarray(np.full((6, 8), 0x8000, dtype=np.uint16)).save(photos / "a.png")
    write_csv(photos, "path,label", "a.png,owl")
    assert np.all(fetched(photos).read(np.array([0])) == 0x80)


def test_images_of_many_sizes_become_one_size(photos: Path) -> None:
    write_picture(photos / "wide.png", GREEN, width=40, height=10)
    write_csv(photos, "path,label", "red.png,owl", "wide.png,cat")
    images = fetched(photos, size=[4, 5])
    assert images.shape == (3, 4, 5)
    assert np.array_equal(images.read(np.array([1]))[0], through_pil(photos / "wide.png", size=(4, 5)))


@pytest.mark.skipif(not CALTECH.is_dir(), reason=f"no real images at {CALTECH}")
def test_real_jpegs_listed_in_a_csv_are_read(photos: Path) -> None:
    shutil.copytree(CALTECH, photos / "caltech")
    paths = sorted(path.relative_to(photos) for path in (photos / "caltech").rglob("*.jpg"))
    with (photos / "birds.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("path", "label"), *((path, path.parent.name) for path in paths)])
    images = fetched(photos, size=32)
    assert labels_of(images) == [path.parent.name for path in paths]
    rows = np.array([0, 99, len(paths) - 1])
    expected = [through_pil(photos / paths[row], size=(32, 32)) for row in rows]
    assert np.array_equal(images.read(rows), np.stack(expected))


# -- what is wrong ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "birds.csv  the file is empty"),
        (b"path,label\n", "birds.csv  there are no rows below the header"),
        (b"path,label\nred.png,h\xe4n\n", "birds.csv:2  this is not UTF-8 text (byte 0xe4)"),
        (b"file,label\nred.png,owl\n", "no column 'path' (path_column); it has: 'file', 'label'\n"),
        (b"Path,label\nred.png,owl\n", "no column 'path' (path_column); did you mean 'Path'?"),
        (b"path,lable\nred.png,owl\n", "no column 'label' (label_column); did you mean 'lable'?"),
        (b"path;label\nred.png;owl\n", "columns are to be separated by commas"),
    ],
)
def test_a_csv_that_is_none_or_another_is_refused(photos: Path, data: bytes, expected: str) -> None:
    (photos / "birds.csv").write_bytes(data)
    assert expected in f"{problems(photos)}\n"


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (",owl", "the image's path is empty"),
        ("green.png,", "the label is empty"),
        ("red.png,cat", "red.png is listed before, photos/birds.csv:2, with another label: 'owl' there, 'cat' here"),
    ],
)
def test_a_wrong_row_is_told_to_the_letter(photos: Path, row: str, told: str) -> None:
    write_csv(photos, "path,label", "red.png,owl", row)
    assert problems(photos).splitlines()[1:] == [f"  photos/birds.csv:3  {told}"]


def link_that_leaves(photos: Path) -> None:
    write_picture(photos.parent / "outside.png")
    (photos / "leaves.png").symlink_to("../outside.png")


def cut_short(photos: Path) -> None:
    data = write_picture(photos / "whole.jpg", width=64, height=64).read_bytes()
    (photos / "cut.jpg").write_bytes(data[: len(data) // 2])


def nothing(_photos: Path) -> None:
    """The fault is in the row alone."""


BAD_ROWS: dict[str, tuple[str, str, Callable[[Path], object]]] = {
    "missing file": ("nowhere.png,owl,train", "nowhere.png: there is no such file", nothing),
    "empty path": (",owl,train", "the image's path is empty", nothing),
    "empty label": ("l.png,,train", "the label is empty", lambda photos: write_picture(photos / "l.png")),
    "spaces": (
        "s.png, owl,train",
        "' owl' is not among classes of params.yaml; did you mean 'owl'?",
        lambda photos: write_picture(photos / "s.png"),
    ),
    "unknown label": ("u.png,olw,train", "did you mean 'owl'?", lambda photos: write_picture(photos / "u.png")),
    "long label": (
        f"o.png,{'owl' * 1000},train",
        "the label has 3,000 characters, 100 are allowed",
        lambda photos: write_picture(photos / "o.png"),
    ),
    "unknown part": (
        "p.png,owl,tset",
        "'tset' is no part; allowed: train, validation, val, valid, test",
        lambda photos: write_picture(photos / "p.png"),
    ),
    "no part": ("n.png,owl,", "'' is no part", lambda photos: write_picture(photos / "n.png")),
    "zero bytes": ("0.png,owl,train", "0.png: the file is empty (0 bytes)", lambda photos: (photos / "0.png").touch()),
    "cut short": ("cut.jpg,owl,train", "cut.jpg can't be read as an image", cut_short),
    "no image": (
        "text.png,owl,train",
        "text.png can't be read as an image",
        lambda photos: (photos / "text.png").write_text("an owl"),
    ),
    "bomb": (
        "bomb.png,owl,train",
        "bomb.png can't be read as an image",
        lambda photos: write_bomb(photos / "bomb.png"),
    ),
    "folder": ("folder,owl,train", "folder is no file", lambda photos: (photos / "folder").mkdir()),
    "absolute": (
        "/etc/hostname,owl,train",
        "/etc/hostname is absolute: images' paths start at",
        nothing,
    ),
    "dots": (
        "../other.png,owl,train",
        "../other.png leads out of",
        lambda photos: write_picture(photos.parent / "other.png"),
    ),
    "link": ("leaves.png,owl,train", "leaves.png leads out of", link_that_leaves),
    "circular link": (
        "round.png,owl,train",
        "round.png: ",
        lambda photos: (photos / "round.png").symlink_to("round.png"),
    ),
    "long name": (f"{'x' * 300}.png,owl,train", "File name too long", nothing),
    "very long path": (f"{'x/' * 2500}x.png,owl,train", "x/x…: File name too long", nothing),
    "pipe": ("pipe.png,owl,train", "pipe.png is no file", lambda photos: os.mkfifo(photos / "pipe.png")),
    "zeros without end": ("/dev/zero,owl,train", "/dev/zero is absolute", nothing),
    "twice": ("red.png,owl,train", "red.png is listed before, photos/birds.csv:2", nothing),
    "twice in other words": ("./photos/../red.png,owl,train", "is listed before, photos/birds.csv:2", nothing),
    "another label": ("red.png,cat,train", "another label: 'owl' there, 'cat' here", nothing),
    "another part": ("red.png,owl,test", "another part: train there, test here", nothing),
    "same file by a link": (
        "same.png,owl,test",
        "same.png is listed before, photos/birds.csv:2",
        lambda photos: (photos / "same.png").symlink_to("red.png"),
    ),
    "too few fields": ("red.png,owl", "has 2 fields, the header has 3", nothing),
    "too many fields": ("red.png,owl,train,", "has 4 fields, the header has 3", nothing),
}
GOOD_ROWS = ("path,label,split", "red.png,owl,train", "green.png,cat,validation", "blue.png,owl,test")


@pytest.mark.parametrize("kind", BAD_ROWS)
def test_a_bad_row_is_named_with_its_line_and_what_is_wrong(photos: Path, kind: str) -> None:
    row, expected, make = BAD_ROWS[kind]
    make(photos)
    write_csv(photos, *GOOD_ROWS, row)
    told = problems(photos, split_column="split", classes=["owl", "cat"]).splitlines()
    assert told[0] == "data set 'birds' has 1 problem; nothing was written"
    assert told[1].startswith("  photos/birds.csv:5  ")
    assert expected in told[1]


def test_all_bad_rows_are_told_at_once_and_nothing_is_written(photos: Path) -> None:
    rows, lines = [*GOOD_ROWS, "", '"two\nlines.png",owl,train', ""], {}
    for kind, (row, _, make) in BAD_ROWS.items():
        make(photos)
        rows.append(row)
        lines[kind] = len("\n".join(rows).splitlines())
    write_picture(photos / "two\nlines.png")
    write_csv(photos, *rows)
    settings = csv_settings(split_column="split", classes=["owl", "cat"])
    before = sorted(photos.parent.rglob("*"))
    ran = run_download(plan_of(**settings), photos.parent)
    assert (ran.returncode, ran.stdout) == (2, "")
    told = ran.stderr.splitlines()
    assert told[0] == f"error: data set 'birds' has {len(BAD_ROWS)} problems; nothing was written"
    for kind, (_, expected, _) in BAD_ROWS.items():
        of_line = [line for line in told if line.startswith(f"  photos/birds.csv:{lines[kind]}  ")]
        assert len(of_line) == 1, (kind, lines[kind], ran.stderr)
        assert expected in of_line[0]
    left = {
        photos.parent / "plan.json",
        photos.parent / "SHA256SUMS",
        photos.parent / "data",
        photos.parent / "data" / "raw",
    }
    assert set(photos.parent.rglob("*")) - set(before) <= left


def test_what_is_wrong_in_each_of_several_csvs_is_told(photos: Path) -> None:
    write_csv(photos, "path;label", "red.png;owl", name="a.csv")
    write_csv(photos, "path,label,label", name="b.csv")
    wrong = "did you mean 'path;label'? it has: 'path;label' (columns are to be separated by commas)"
    assert problems(photos, parts={"train": "photos/a.csv", "test": "photos/b.csv"}, validation=1).splitlines() == [
        "data set 'birds' has 3 problems; nothing was written",
        f"  photos/a.csv  there is no column 'label' (label_column); {wrong}",
        f"  photos/a.csv  there is no column 'path' (path_column); {wrong}",
        "  photos/b.csv  the header names the column 'label' 2 times",
    ]


@pytest.mark.parametrize(("count", "shown"), [(12, "c11"), (13, "c11, ...")])
def test_what_a_label_may_be_is_told_and_of_many_the_first_twelve(photos: Path, count: int, shown: str) -> None:
    classes = [f"c{number:02}" for number in range(count)]
    write_csv(photos, "path,label", "red.png,c00", f"green.png,{'x' * 100}", f"blue.png,{'x' * 101}")
    assert problems(photos, classes=classes).splitlines()[1:] == [
        f"  photos/birds.csv:3  '{'x' * 100}' is not among classes of params.yaml; there are: "
        f"{', '.join(classes[:11])}, {shown}",
        "  photos/birds.csv:4  the label has 101 characters, 100 are allowed",
    ]


@pytest.mark.parametrize(("count", "rest"), [(100, []), (101, ["  and 1 more"]), (250, ["  and 150 more"])])
def test_of_many_problems_the_first_hundred_are_told_and_the_rest_counted(
    photos: Path, count: int, rest: list[str]
) -> None:
    write_csv(photos, "path,label", *(f"{number}.png,owl" for number in range(count)))
    told = problems(photos).splitlines()
    assert told[0] == f"data set 'birds' has {count} problems; nothing was written"
    for number, line in enumerate(told[1:101]):
        assert line.startswith(f"  photos/birds.csv:{number + 2}  {number}.png: there is no such file")
    assert told[101:] == rest


def test_images_keep_the_paths_that_the_csv_gives_them(photos: Path) -> None:
    write_csv(photos, "path,label", "red.png,owl", "./green.png,cat")
    assert fetched(photos).origins == ("red.png", "./green.png")


def test_a_label_that_no_training_row_has_is_named(photos: Path) -> None:
    write_csv(photos, *GOOD_ROWS, "nowhere.png,,train")
    told = problems(photos, split_column="split")
    assert "photos/birds.csv:3  'cat' is not among the labels of the training rows; " in told
    assert "photos/birds.csv:5  the label is empty" in told


def test_a_label_with_spaces_around_it_is_no_class_of_its_own(photos: Path) -> None:
    write_csv(photos, "path,label", "red.png,owl", "green.png, owl")
    assert "photos/birds.csv:3  the label ' owl' has spaces around it" in problems(photos)


def test_images_of_several_sizes_need_the_key_that_the_message_names(photos: Path) -> None:
    write_picture(photos / "wide.png", width=40)
    write_csv(photos, "path,label", "red.png,owl", "wide.png,owl")
    told = problems(photos)
    assert told.splitlines()[1].startswith("  photos/birds.csv  ")
    assert "2 sizes (height x width: 6x8, 6x40)" in told
    assert "set datasets.birds.size in params.yaml" in told


def test_a_column_of_parts_needs_a_training_part(photos: Path) -> None:
    write_csv(photos, "path,label,split", "red.png,owl,test", "blue.png,owl,val")
    assert problems(photos, split_column="split").splitlines() == [
        "data set 'birds' has 1 problem; nothing was written",
        "  photos/birds.csv  no row has 'train' in the column 'split': there is nothing to train on",
    ]


def test_a_part_must_be_in_the_column_or_be_drawn(photos: Path) -> None:
    write_csv(photos, "path,label,split", "red.png,owl,train", "blue.png,owl,test")
    told = problems(photos, split_column="split", test=1)
    assert "no row has 'validation' in the column 'split': set datasets.birds.validation in params.yaml" in told
    assert "the column 'split' has a test part: leave datasets.birds.test out of params.yaml" in told


def test_the_same_image_in_the_csvs_of_two_parts_is_named(photos: Path) -> None:
    write_csv(photos, "path,label", "red.png,owl", "blue.png,owl", name="train.csv")
    write_csv(photos, "path,label", "green.png,owl", "blue.png,owl", name="test.csv")
    told = problems(photos, parts={"train": "photos/train.csv", "test": "photos/test.csv"}, validation=1)
    assert "photos/test.csv:3  blue.png is listed before, photos/train.csv:3, in another part" in told


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"split_column": "split", "parts": {"train": "a.csv", "test": "b.csv"}, "validation": 1}, "goes with path"),
        ({"classes": ["owl", "cat", "owl"]}, "must name each class once"),
        ({"classes": []}, "must name each class once"),
        ({"classes": ["owl", "x" * 101]}, "may have 100 characters at most"),
    ],
)
def test_settings_that_contradict_themselves_are_refused(settings: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValidationError, match=expected):
        plan_of(**csv_settings(**settings))


def test_a_refused_csv_leaves_what_was_fetched_before(photos: Path) -> None:
    write_csv(photos, "path,label", "red.png,owl", "green.png,cat")
    images = fetched(photos)
    write_csv(photos, "path,label", "red.png,owl", "nowhere.png,cat")
    with pytest.raises(MistakeError):
        fetched(photos)
    assert images.read(np.array([1]))[0, :, 0, 0].tolist() == list(GREEN)
