"""Image files, in a CSV or a folder per class: read as bytes, refused or noticed by `plan`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT
from image_files import BLUE, GREEN, RED, picture, plan_of, through_pil, write_picture
from PIL import Image

from photofinish.config.loader import read_params
from photofinish.data import PartName
from photofinish.data.images import decode, pixels_of, to_pixels
from photofinish.data.local_files import sha256_of_local_files
from photofinish.data.split import RawData, read_raw, split
from photofinish.errors import ConfigError, UserError
from photofinish.planning.checks import check_paths
from photofinish.planning.plan import write_plan


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's folder with three images in photos/."""
    monkeypatch.chdir(tmp_path)
    for name, colour in (("red.png", RED), ("green.png", GREEN), ("blue.png", BLUE)):
        write_picture(tmp_path / "photos" / name, colour)
    return tmp_path / "photos"


def write_csv(folder: Path, *lines: str, name: str = "birds.csv") -> None:
    (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")


def csv_settings(**settings: Any) -> dict[str, Any]:
    drawn = {} if settings.keys() & {"split_column", "parts"} else {"validation": 1, "test": 1}
    place = {} if "parts" in settings else {"path": "photos/birds.csv"}
    return {"source": "csv", **place, **drawn, **settings}


def read(photos: Path, **settings: Any) -> RawData:
    return read_raw(plan_of(**csv_settings(**settings)), photos.parent / "data/raw/birds")


def labels_of(images: RawData) -> list[str]:
    return [images.class_names[label] for label in images.labels]


def parts_of(images: RawData) -> dict[PartName, list[int]]:
    return {part: rows.tolist() for part, rows in images.own_parts.items()}


def test_images_and_labels_are_those_of_the_rows(photos: Path) -> None:
    write_csv(photos, "path,label", "red.png,warm", "green.png,cold", "blue.png,cold")
    images = read(photos)
    assert images.class_names == ("cold", "warm")
    assert labels_of(images) == ["warm", "cold", "cold"]
    assert images.shape == (3, 6, 8)
    assert images.name_of(2) == "photos/birds.csv:4"
    assert images.inputs[np.array([2, 0])][:, :, 0, 0].tolist() == [list(BLUE), list(RED)]


@pytest.mark.parametrize(
    ("data", "settings", "labels"),
    [
        (b"path,label\nred.png,NA\ngreen.png,001\nblue.png,1.0\n", {}, ["NA", "001", "1.0"]),
        (b"\xef\xbb\xbfpath,label\r\nred.png,h\xc3\xa4n\r\n\r\ngreen.png,a\r\n", {}, ["hän", "a"]),
        (b'id,label,path\n1,"owl, ""barn""","red.png"', {}, ['owl, "barn"']),
        (b"file,kind\nred.png,owl\n", {"path_column": "file", "label_column": "kind"}, ["owl"]),
    ],
    ids=["numbers stay text", "as Excel saves it", "quoted", "named columns"],
)
def test_every_usual_way_to_write_a_csv_is_read(
    photos: Path, data: bytes, settings: dict[str, Any], labels: list[str]
) -> None:
    (photos / "birds.csv").write_bytes(data)
    images = read(photos, **settings)
    assert labels_of(images) == labels
    assert images.class_names == tuple(sorted(labels))


def test_a_column_can_name_the_parts_or_each_part_can_have_its_own_csv(photos: Path) -> None:
    rows = ("green.png,a,TEST", "red.png,a,train", "blue.png,a,val")
    write_csv(photos, "path,label,split", *rows)
    parts = parts_of(read(photos, split_column="split"))
    assert parts == {"test": [0], "train": [1], "validation": [2]}
    write_picture(photos.parent / "more" / "red.png", GREEN)
    write_csv(photos, "path,label", "red.png,owl", "blue.png,cat", name="train.csv")
    write_csv(photos.parent / "more", "path,label", "red.png,owl", name="test.csv")
    places = {"train": "photos/train.csv", "test": "more/test.csv"}
    images = read(photos, parts=places, validation=1)
    assert parts_of(images) == {"train": [0, 1], "test": [2]}
    assert images.inputs[np.array([0, 2])][:, :, 0, 0].tolist() == [list(RED), list(GREEN)]


def test_a_photo_is_turned_as_its_exif_data_say_unless_they_are_damaged(photos: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # lies on its side
    picture().save(photos / "a.jpg", exif=exif)
    write_csv(photos, "path,label", "a.jpg,owl")
    turned = np.rot90(through_pil(photos / "a.jpg"), -1, axes=(1, 2))
    assert np.array_equal(read(photos).inputs[np.array([0])][0], turned)
    picture().save(photos / "a.jpg", exif=b"Exif\0\0nonsense")
    assert read(photos).shape == (3, 6, 8)


def test_images_of_many_sizes_are_resized_if_a_size_is_set(photos: Path) -> None:
    write_picture(photos / "wide.png", GREEN, width=40, height=10)
    write_csv(photos, "path,label", "red.png,owl", "wide.png,cat")
    with pytest.raises(ConfigError, match=r"(?s)birds\.csv:3: .*datasets\.birds\.size"):
        read(photos)
    images = read(photos, size=[4, 5])
    expected = through_pil(photos / "wide.png", size=(4, 5))
    assert np.array_equal(images.inputs[np.array([1])][0], expected)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"path,label\nred.png,h\xe4n\n", "can't be read as CSV in UTF-8"),
        (b"path,lable\nred.png,owl\n", "no column 'label'; did you mean 'lable'?"),
        (b"path,label\n", "has no rows below the header"),
    ],
)
def test_a_file_that_is_no_such_csv_is_named(photos: Path, data: bytes, message: str) -> None:
    (photos / "birds.csv").write_bytes(data)
    with pytest.raises(ConfigError, match=rf"photos/birds\.csv.*{message.replace('?', '.')}"):
        read(photos)


def reported_lines(text: str) -> list[int]:
    """Return the lines of the CSV that a message names."""
    named = [line for line in text.splitlines() if line.startswith("photos/birds.csv:")]
    return [int(line.split(":")[1]) for line in named]


def test_the_first_ten_faulty_rows_or_images_are_reported_together(photos: Path) -> None:
    faulty = (",owl,train", "green.png,,train", "green.png,owl,tset")
    write_csv(photos, "path,label,split", "red.png,owl,train", *faulty * 4)
    with pytest.raises(ConfigError) as caught:
        read(photos, split_column="split", validation=1)
    assert reported_lines(str(caught.value)) == list(range(3, 13))
    data = write_picture(photos / "whole.jpg", width=64, height=64).read_bytes()
    (photos / "cut.jpg").write_bytes(data[: len(data) // 2])
    rows = ("red.png,owl", "cut.jpg,owl", *(f"{number}.png,owl" for number in range(20)))
    write_csv(photos, "path,label", *rows)
    with pytest.raises(ConfigError) as caught:
        split(plan_of(**csv_settings()), read(photos), photos.parent / "split")
    assert reported_lines(str(caught.value)) == list(range(3, 13))
    assert not (photos.parent / "split").exists()


IN_PARTS = {"parts": {"train": "photos/train", "test": "photos/test"}, "validation": 1}


@pytest.fixture
def classes(photos: Path) -> Path:
    """A project's folder with photos of two classes, one of them with a folder within."""
    for path in photos.iterdir():
        path.unlink()
    files = {"owl/b.png": RED, "owl/a.PNG": GREEN, "owl/barn/a.jpeg": BLUE, "cat/a.png": BLUE}
    for name, colour in files.items():
        write_picture(photos / name, colour)
    return photos


def read_folder(photos: Path, **settings: Any) -> RawData:
    settings = settings or {"path": "photos", "validation": 1, "test": 1}
    return read_raw(plan_of(source="folder", **settings), photos.parent / "data/raw/birds")


def test_each_folder_is_a_class_with_all_images_below_it(classes: Path) -> None:
    (classes / "owl/notes.txt").touch()
    write_picture(classes.parent / "outside/x.png")
    (classes / "owl/linked").symlink_to("../../outside")
    images = read_folder(classes)
    assert images.class_names == ("cat", "owl")
    assert images.labels.tolist() == [0, 1, 1, 1, 1]
    names = [images.name_of(row) for row in range(5)]
    files = ["cat/a.png", "owl/a.PNG", "owl/b.png", "owl/barn/a.jpeg", "owl/linked/x.png"]
    assert names == [f"photos/{file}" for file in files]
    expected = [through_pil(classes / file) for file in files]
    assert np.array_equal(images.inputs[np.arange(5)], np.stack(expected))
    assert images.own_parts == {}


def test_each_part_can_have_its_own_folder_with_the_classes_of_the_training(classes: Path) -> None:
    (classes / "train").mkdir()
    for name in ("owl", "cat"):
        (classes / name).rename(classes / "train" / name)
    write_picture(classes / "test/owl/z.png", GREEN)
    write_picture(classes / "test/cat/z.png", RED)
    images = read_folder(classes, **IN_PARTS)
    assert images.class_names == ("cat", "owl")
    parts = {part: rows.tolist() for part, rows in images.own_parts.items()}
    assert parts == {"train": [0, 1, 2, 3], "test": [4, 5]}
    assert images.labels[images.own_parts["test"]].tolist() == [0, 1]
    assert images.inputs[np.array([5])][0, :, 0, 0].tolist() == list(GREEN)
    write_picture(classes / "test/own/a.png")
    with pytest.raises(ConfigError, match=r"photos/test/own/a\.png: 'own' is not a class .*'owl'"):
        read_folder(classes, **IN_PARTS)


def test_faulty_files_are_reported_together(classes: Path) -> None:
    (classes / "owl/empty.png").touch()
    (classes / "owl/broken.png").symlink_to("nowhere.png")
    write_picture(classes / "owl/wide.png", width=40)
    data = (classes / "owl/b.png").read_bytes()
    (classes / "owl/cut.png").write_bytes(data[: len(data) // 2])
    with pytest.raises(ConfigError) as caught:
        read_folder(classes)
    for name in ("owl/empty.png", "owl/broken.png", "owl/wide.png", "owl/cut.png"):
        assert f"\nphotos/{name}: " in str(caught.value)
    (classes / "emu").mkdir()
    with pytest.raises(OSError, match="no valid file for the classes emu"):
        read_folder(classes)


SHADES = (200, 10, 30)


def image_of(mode: str) -> Image.Image:
    """Return an image of one colour, 5 high, 7 wide. Grey ones have shade 100."""
    if mode == "I;16":
        return Image.fromarray(np.full((5, 7), 100 * 257, dtype=np.uint16))
    if mode == "P":
        return Image.new("RGB", (7, 5), SHADES).convert("P", palette=Image.Palette.ADAPTIVE)
    colours = {
        "L": 100,
        "LA": (100, 9),
        "RGB": SHADES,
        "RGBA": (*SHADES, 9),
        "CMYK": (55, 245, 225, 0),
        "1": 1,
    }
    return Image.new(mode, (7, 5), colours[mode])


IN_COLOUR = [(mode, SHADES, 69) for mode in ("P", "RGB", "RGBA", "CMYK")]
"""Red is grey of 0.299 * 200 + 0.587 * 10 + 0.114 * 30."""
IN_GREY = [(mode, (100,) * 3, 100) for mode in ("L", "LA", "I;16")]


@pytest.mark.parametrize(("mode", "colour", "grey"), [*IN_COLOUR, *IN_GREY, ("1", (255,) * 3, 255)])
def test_an_image_of_each_mode_has_its_colours_in_three_channels_or_its_grey_in_one(
    mode: str, colour: tuple[int, ...], grey: int
) -> None:
    pixels = to_pixels(image_of(mode), None, 3)
    assert (pixels.shape, pixels.dtype) == ((3, 5, 7), np.uint8)
    assert [np.unique(channel).tolist() for channel in pixels] == [[shade] for shade in colour]
    assert np.unique(to_pixels(image_of(mode), None, 1)).tolist() == [grey]
    channels = 3 if colour == SHADES else 1
    assert pixels_of(image_of(mode)).shape == (channels, 5, 7)


def test_an_image_is_smoothed_where_it_shrinks() -> None:
    stripes = np.zeros((8, 8), dtype=np.uint8)
    stripes[:, ::2] = 200
    shrunk = to_pixels(Image.fromarray(stripes), (4, 2), 1)
    assert shrunk.shape == (1, 4, 2)
    assert 80 < shrunk.min() <= shrunk.max() < 120  # without smoothing: 0 or 200


@pytest.mark.parametrize("name", ["image.png", "image.tiff", "image.pgm"])
def test_16_bits_are_scaled_by_their_range(tmp_path: Path, name: str) -> None:
    shades = np.array([[0, 257 * 7, 257 * 100 + 128, 257 * 100 + 129, 65535]], dtype=np.uint16)
    Image.fromarray(shades).save(tmp_path / name)
    assert decode(tmp_path / name, None, 1).ravel().tolist() == [0, 7, 100, 101, 255]


@pytest.mark.parametrize("mode", ["I", "F"])
def test_32_bits_are_refused_because_white_is_unknown(tmp_path: Path, mode: str) -> None:
    Image.new(mode, (2, 2), 1).save(tmp_path / "image.tiff")
    with pytest.raises(UserError, match=r"image\.tiff can't be read as an image: .*8 or 16 bits"):
        decode(tmp_path / "image.tiff", None, 1)


PARAMS = """\
defaults: {epochs: 1, batch_size: 2, optimizer: {name: sgd, lr: 0.1}}
datasets:
  listed: {source: csv, path: photos/birds.csv, validation: 1, test: 1}
  sorted: {source: folder, path: photos, validation: 1, test: 1}
  named: {source: "./scans.py:Scans", files: [photos/birds.csv, more], validation: 1, test: 1}
  digits: {source: digits, validation: 1, test: 1}
experiments:
  first: {dataset: digits, model: linear}
"""
LISTED = "path,label\nowl/a.png,owl\ncat/a.png,cat\n"


def write_params(birds: Path, text: str) -> None:
    (birds.parent / "params.yaml").write_text(text, encoding="utf-8")


@pytest.fixture
def birds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's folder with photos that a CSV lists, in a folder per class."""
    monkeypatch.chdir(tmp_path)
    write_params(tmp_path / "photos", PARAMS)
    for name in ("owl/a.png", "owl/b.png", "cat/a.png"):
        write_picture(tmp_path / "photos" / name)
    (tmp_path / "photos/birds.csv").write_text(LISTED, encoding="utf-8")
    (tmp_path / "more/deep").mkdir(parents=True)
    for name in ("scans.py", "more/deep/1.txt"):
        (tmp_path / name).touch()
    return tmp_path / "photos"


def state(birds: Path) -> dict[str, str]:
    return sha256_of_local_files(read_params(birds.parent / "params.yaml", check_paths).datasets)


def changed_by(birds: Path, before: dict[str, str]) -> set[str]:
    after = state(birds)
    return {name for name in after if after[name] != before[name]}


def test_a_change_changes_the_data_sets_that_it_is_part_of(birds: Path) -> None:
    table, more, both = birds / "birds.csv", birds.parent / "more", {"listed", "sorted"}
    changes: list[tuple[Callable[[], object], set[str]]] = [
        (lambda: os.utime(birds / "owl/a.png", ns=(1, 1)), both),
        (lambda: os.utime(birds / "owl/b.png", ns=(1, 1)), {"sorted"}),
        (lambda: (birds / "owl/b.png").unlink(), {"sorted"}),
        (lambda: write_picture(birds / "owl/c.png"), {"sorted"}),
        (lambda: table.write_text(LISTED.replace("owl\n", "emu\n")), both | {"named"}),
        (lambda: os.utime(birds / "owl", ns=(1, 1)), set()),
        (lambda: os.utime(more / "deep/1.txt", ns=(1, 1)), {"named"}),
        (lambda: (more / "2.txt").touch(), {"named"}),
        (lambda: os.utime(more, ns=(1, 1)), set()),  # its own time doesn't count
    ]
    for number, (change, changed) in enumerate(changes):
        before = state(birds)
        change()
        assert changed_by(birds, before) == changed, number


def test_a_faulty_csv_is_left_for_split_to_report(birds: Path) -> None:
    (birds / "birds.csv").write_bytes(b"\xff\xfe\x00")
    assert len(state(birds)["listed"]) == 64


def test_the_state_is_written_into_the_plan_of_the_data_set(birds: Path) -> None:
    project = birds.parent
    write_plan(read_params(project / "params.yaml"), project / "plan", ROOT / "stages")
    for name, text in {**state(birds), "digits": '"local_files": null'}.items():
        assert text in (project / f"plan/datasets/{name}.json").read_text(encoding="utf-8")


def test_wrong_paths_are_reported_by_their_keys_with_all_other_mistakes(birds: Path) -> None:
    text = PARAMS.replace("folder, path: photos", "folder, path: photos/birds.csv")
    text = text.replace("photos/birds.csv", "photos", 1).replace("model: linear", "model: lineer")
    text = text.replace("digits, validation: 1, test: 1}", "MNIST, root: no, validation: 1}")
    write_params(birds, f"{text}\ncompare: {{references: [elsewhere]}}\n")
    with pytest.raises(ConfigError) as caught:
        state(birds)
    for problem in (
        'datasets.listed.path = "photos"\n    no such CSV file',
        'datasets.sorted.path = "photos/birds.csv"\n    no such folder',
        "datasets.digits.root = ",
        "experiments.first.model.name = ",
        'compare.references.0 = "elsewhere"\n    reference/ has no folder yet',
    ):
        assert problem in str(caught.value)


@pytest.mark.parametrize("path", ["..", "/", "."])
def test_a_folder_that_contains_the_project_is_refused_and_not_read(birds: Path, path: str) -> None:
    write_params(birds, PARAMS.replace("path: photos,", f"path: {path},"))
    with pytest.raises(ConfigError) as caught:
        state(birds)
    place, problem = str(caught.value).splitlines()[1:]
    assert place == f'{birds.parent}/params.yaml:4  datasets.sorted.path = "{path}"'
    assert problem == "    this folder contains the project: name one with only the samples"


def test_relative_paths_start_at_the_project_and_a_tilde_at_home(
    birds: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    before = state(birds)
    monkeypatch.setenv("DVC_ROOT", str(birds.parent))
    monkeypatch.chdir(tmp_path_factory.mktemp("copy"))
    assert changed_by(birds, before) == set()
    monkeypatch.setenv("HOME", str(birds.parent))
    write_params(birds, PARAMS.replace("path: photos", "path: ~/photos"))
    assert changed_by(birds, before) == set()
