"""The plan knows when the user's own images have changed, and when they aren't there."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from conftest import ROOT, run_stage
from image_files import write_picture

from photofinish.data.local_files import CsvFile, Row, class_folders, misplaced, parse_csv, sha256_of_local_files
from photofinish.errors import MistakeError
from photofinish.params.reader import read_params
from photofinish.plan import write_plan

PARAMS = """\
defaults: {epochs: 1, batch_size: 2, optimizer: {name: sgd, lr: 0.1}}
datasets:
  listed: {source: csv, path: photos/birds.csv, validation: 1, test: 1}
  sorted: {source: folder, path: photos, validation: 1, test: 1}
  digits: {source: digits, validation: 1, test: 1}
experiments:
  first: {dataset: digits, model: linear}
"""


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's folder with photos that are listed in a CSV, and are in a folder a class."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    (tmp_path / "params.yaml").write_text(PARAMS, encoding="utf-8")
    for name in ("owl/a.png", "owl/b.png", "cat/a.png"):
        write_picture(tmp_path / "photos" / name)
    (tmp_path / "photos/birds.csv").write_text("path,label\nowl/a.png,owl\ncat/a.png,cat\n", encoding="utf-8")
    return tmp_path / "photos"


def state(photos: Path) -> dict[str, str]:
    find_mistakes = partial(misplaced, references=photos.parent / "reference")
    return sha256_of_local_files(read_params(photos.parent / "params.yaml", find_mistakes).datasets)


def changed_by(photos: Path, before: dict[str, str]) -> set[str]:
    after = state(photos)
    return {name for name in after if after[name] != before[name]}


def test_only_data_sets_of_local_files_have_a_state(photos: Path) -> None:
    assert state(photos).keys() == {"listed", "sorted"}


def test_an_image_that_was_touched_changes_the_data_sets_it_is_in(photos: Path) -> None:
    before = state(photos)
    os.utime(photos / "owl/a.png", ns=(1, 1))
    assert changed_by(photos, before) == {"listed", "sorted"}
    before = state(photos)
    os.utime(photos / "owl/b.png", ns=(1, 1))
    assert changed_by(photos, before) == {"sorted"}


def test_a_changed_csv_changes_its_data_set_only(photos: Path) -> None:
    before = state(photos)
    (photos / "birds.csv").write_text("path,label\nowl/a.png,emu\ncat/a.png,cat\n", encoding="utf-8")
    assert changed_by(photos, before) == {"listed"}


@pytest.mark.parametrize("change", ["added", "gone", "renamed", "new class", "empty class"])
def test_a_file_that_comes_or_goes_changes_the_folder(photos: Path, change: str) -> None:
    before = state(photos)
    match change:
        case "added":
            write_picture(photos / "owl/c.png")
        case "gone":
            (photos / "owl/b.png").unlink()
        case "renamed":
            (photos / "owl/b.png").rename(photos / "owl/c.png")
        case "new class":
            write_picture(photos / "emu/c.png")
        case "empty class":
            (photos / "emu").mkdir()
    assert changed_by(photos, before) == {"sorted"}


def test_a_listed_image_that_goes_missing_changes_the_data_set(photos: Path) -> None:
    before = state(photos)
    (photos / "owl/a.png").unlink()
    assert "listed" in changed_by(photos, before)


def test_what_is_no_part_of_the_data_changes_nothing(photos: Path) -> None:
    before = state(photos)
    (photos / "owl/notes.txt").touch()
    write_picture(photos / "owl/.hidden.png")
    os.utime(photos / "birds.csv", ns=(1, 1))
    os.utime(photos / "owl", ns=(1, 1))
    assert changed_by(photos, before) == set()


@pytest.mark.parametrize(
    "data", [b"", b"\xff\xfe\x00", b'path,label\n"', b"file,label\nx,y\n", b"path,label\na\0b,c\n"]
)
def test_a_csv_that_is_wrong_is_left_for_download_to_explain(photos: Path, data: bytes) -> None:
    (photos / "birds.csv").write_bytes(data)
    assert len(state(photos)["listed"]) == 64


def test_names_that_are_not_text_count_too(photos: Path) -> None:
    before = state(photos)
    write_picture(photos / os.fsdecode(b"owl/\xff.png"))
    assert changed_by(photos, before) == {"sorted"}
    before = state(photos)
    write_picture(photos / os.fsdecode(b"\xfe/a.png"))
    assert changed_by(photos, before) == {"sorted"}


def test_beside_links_that_are_not_followed_all_folders_are(photos: Path) -> None:
    for name in "abcd":
        (photos / "owl" / name).symlink_to("..")
        write_picture(photos / "owl" / f"{name}{name}" / "x.png")
    owl = class_folders(photos)[1]
    assert owl.images == ["owl/a.png", "owl/b.png", *(f"owl/{name}/x.png" for name in ("aa", "bb", "cc", "dd"))]
    assert owl.linked_folders == [f"owl/{name}" for name in "abcd"]


NO_TEXT = "this is no text, it has zero bytes: save the file as CSV in UTF-8"
ROW = Row(2, ("a", "b"))


@pytest.mark.parametrize(
    ("data", "rows", "problems"),
    [
        (b"", [], [(0, "the file is empty")]),
        (b'"x', [], [(1, "can't be read as CSV, nor can what follows: unexpected end of data")]),
        (b"\n \n", [], [(0, "the file is empty")]),
        (b"x,y\na,h\xe4n\n", [], [(2, "this is not UTF-8 text (byte 0xe4): save the file as CSV in UTF-8")]),
        ("x,y\n".encode("utf-16"), [], [(1, "this is not UTF-8 text (byte 0xff): save the file as CSV in UTF-8")]),
        (b"x,y\n\0,b\n", [], [(0, NO_TEXT)]),
        (b"\xef\xbb\xbfx,y\r\na,b\r\n", [ROW], []),
        (b'x,y\na,b\n\n \n"a\r\nb","c, ""d"""\ne,f', [ROW, Row(5, ("a\r\nb", 'c, "d"')), Row(7, ("e", "f"))], []),
        (b"x,y\na,b\n,\n", [ROW, Row(3, ("", ""))], []),
        (b"x,y\na,b\na\n", [ROW], [(3, "has 1 field, the header has 2")]),
        (b"x,y\na,b\na,b,c\n", [ROW], [(3, "has 3 fields, the header has 2")]),
        (
            b'x,y\na,b\n\nc,"d\ne,f\n',
            [ROW],
            [(4, "can't be read as CSV, nor can what follows: unexpected end of data")],
        ),
    ],
)
def test_a_csv_is_read_with_its_lines_and_what_is_wrong_in_them(
    data: bytes, rows: list[Row], problems: list[tuple[int, str]]
) -> None:
    assert parse_csv(data) == CsvFile(("x", "y") if rows else (), rows, problems)


def test_a_column_that_the_header_names_twice_is_told() -> None:
    assert parse_csv(b"x,y,x\na,b,c\n").problems == [(0, "the header names the column 'x' 2 times")]


def test_the_state_is_written_into_the_plan_of_the_data_set(photos: Path) -> None:
    write_plan(
        read_params(photos.parent / "params.yaml"), photos.parent / "plan", photos.parent / "splits", ROOT / "stages"
    )
    states = state(photos)
    for name in ("listed", "sorted"):
        assert states[name] in (photos.parent / f"plan/datasets/{name}.json").read_text(encoding="utf-8")
    assert '"local_files": null' in (photos.parent / "plan/datasets/digits.json").read_text(encoding="utf-8")


def test_data_that_is_not_there_is_refused_all_at_once_before_anything_is_written(photos: Path) -> None:
    (photos / "birds.csv").unlink()
    wrong = PARAMS.replace("path: photos,", "path: fotos,")
    (photos.parent / "params.yaml").write_text(wrong.replace("model: linear", "model: lineer", 1), encoding="utf-8")
    ran = run_stage("plan", "--out", "plan", cwd=photos.parent)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert 'datasets.listed.path = "photos/birds.csv"\n    there is no such CSV file' in ran.stderr
    assert 'datasets.sorted.path = "fotos"\n    there is no such folder' in ran.stderr
    assert 'experiments.first.model = "lineer"\n' in ran.stderr
    assert "params.yaml has 3 mistakes" in ran.stderr
    assert not (photos.parent / "plan").exists()


def test_a_mirror_is_a_folder_that_is_there_or_an_address(photos: Path) -> None:
    for mirror in ("photos", str(photos), "https://example.org/data", "HTTP://127.0.0.1:8000"):
        (photos.parent / "params.yaml").write_text(f"mirror: {mirror}\n{PARAMS}", encoding="utf-8")
        assert state(photos)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "path: photos/birds.csv",
            "path: photos",
            'datasets.listed.path = "photos"\n    this must be a CSV file, and {photos} is a folder',
        ),
        ("path: photos,", "path: nests,", "put it there, or correct the path; relative paths start at the folder of"),
        (
            "path: photos,",
            "path: /no/nests,",
            "there is no such folder (/no/nests): put it there, or correct the path\n",
        ),
        ("path: photos/birds.csv", "path: photos/pipe", "must be a CSV file, and {photos}/pipe is a device or a pipe"),
        ("path: photos/birds.csv", "path: /dev/zero", "must be a CSV file, and /dev/zero is a device or a pipe"),
        ("path: photos,", f"path: {'x/' * 2500},", "this can't be the path of a folder: File name too long"),
        ("path: photos,", 'path: "photos\\0",', "this can't be the path of a folder: embedded null byte"),
        ("defaults:", f"mirror: {'x/' * 2500}\ndefaults:", "there is no such folder"),
        ("path: photos,", "path: '',", 'datasets.sorted.path = ""\n    this is blank: name the folder'),
        ("defaults:", "mirror: no/where\ndefaults:", 'params.yaml:1  mirror = "no/where"\n    there is no such folder'),
        ("path: photos,", "path: photos/birds.csv,", "this must be a folder, and {photos}/birds.csv is a file"),
        (
            "path: photos/birds.csv, validation: 1, test: 1",
            "parts: {train: photos/birds.csv, test: photos/test.csv}, validation: 1",
            'datasets.listed.parts.test = "photos/test.csv"\n    there is no such CSV file',
        ),
    ],
)
def test_a_path_that_leads_to_something_else_is_refused(photos: Path, old: str, new: str, expected: str) -> None:
    assert old in PARAMS
    os.mkfifo(photos / "pipe")
    (photos.parent / "params.yaml").write_text(PARAMS.replace(old, new), encoding="utf-8")
    with pytest.raises(MistakeError) as caught:
        state(photos)
    assert expected.replace("{photos}", str(photos)) in f"{caught.value}\n"


@pytest.mark.parametrize(
    ("folders", "problem"),
    [
        (("old-box", "new-box"), "unknown folder; did you mean 'old-box'? allowed: new-box, old-box"),
        ((), "no folder yet"),
    ],
)
def test_a_reference_that_is_not_there_is_a_mistake(photos: Path, folders: tuple[str, ...], problem: str) -> None:
    for each in folders:
        (photos.parent / "reference" / each).mkdir(parents=True)
    params = photos.parent / "params.yaml"
    params.write_text(PARAMS + "compare:\n  references:\n    - old-bix\n", encoding="utf-8")
    with pytest.raises(MistakeError) as caught:
        state(photos)
    assert 'params.yaml:10  compare.references.0 = "old-bix"\n' in str(caught.value)
    assert problem in str(caught.value)
    params.write_text(PARAMS + f"compare: {{references: [{', '.join(folders)}]}}\n", encoding="utf-8")
    state(photos)


def test_relative_paths_start_at_the_project_and_a_tilde_at_home(
    photos: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    before = state(photos)
    monkeypatch.setenv("DVC_ROOT", str(photos.parent))
    monkeypatch.chdir(tmp_path_factory.mktemp("copy"))
    assert changed_by(photos, before) == set()
    monkeypatch.setenv("HOME", str(photos.parent))
    (photos.parent / "params.yaml").write_text(PARAMS.replace("path: photos", "path: ~/photos"), encoding="utf-8")
    assert changed_by(photos, before) == set()


def test_ten_thousand_images_are_looked_at_in_well_under_a_second(photos: Path) -> None:
    rows = ["path,label"]
    for number in range(10_000):
        (photos / "owl" / f"{number}.png").touch()
        rows.append(f"owl/{number}.png,owl")
    (photos / "birds.csv").write_text("\n".join(rows), encoding="utf-8")
    started_seconds = time.process_time()  # by no clock on the wall: other programs have their share of that
    state(photos)
    assert time.process_time() - started_seconds < 1


def test_the_plan_needs_neither_pandas_nor_pil_nor_torch() -> None:
    large = {"numpy", "pandas", "PIL", "torch", "sklearn"}
    script = f"import sys, photofinish.plan; print(*{large} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == []
