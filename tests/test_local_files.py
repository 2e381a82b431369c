"""`plan` notices changed and missing local files."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from conftest import ROOT
from image_files import write_picture

from photofinish.config.loader import read_params
from photofinish.data.local_files import sha256_of_local_files
from photofinish.errors import ConfigError
from photofinish.planning.checks import check_paths
from photofinish.planning.plan import write_plan

PARAMS = """\
defaults: {epochs: 1, batch_size: 2, optimizer: {name: sgd, lr: 0.1}}
datasets:
  listed: {source: csv, path: photos/birds.csv, validation: 1, test: 1}
  sorted: {source: folder, path: photos, validation: 1, test: 1}
  digits: {source: digits, validation: 1, test: 1}
experiments:
  first: {dataset: digits, model: linear}
"""
LISTED = "path,label\nowl/a.png,owl\ncat/a.png,cat\n"


def write_params(photos: Path, text: str) -> None:
    (photos.parent / "params.yaml").write_text(text, encoding="utf-8")


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's folder with photos that a CSV lists, in a folder per class."""
    monkeypatch.chdir(tmp_path)
    write_params(tmp_path / "photos", PARAMS)
    for name in ("owl/a.png", "owl/b.png", "cat/a.png"):
        write_picture(tmp_path / "photos" / name)
    (tmp_path / "photos/birds.csv").write_text(LISTED, encoding="utf-8")
    return tmp_path / "photos"


def state(photos: Path) -> dict[str, str]:
    find_mistakes = partial(check_paths, references=photos.parent / "reference")
    return sha256_of_local_files(read_params(photos.parent / "params.yaml", find_mistakes).datasets)


def changed_by(photos: Path, before: dict[str, str]) -> set[str]:
    after = state(photos)
    return {name for name in after if after[name] != before[name]}


def test_a_change_changes_the_data_sets_that_it_is_part_of(photos: Path) -> None:
    table, both = photos / "birds.csv", {"listed", "sorted"}
    changes: list[tuple[Callable[[], object], set[str]]] = [
        (lambda: os.utime(photos / "owl/a.png", ns=(1, 1)), both),
        (lambda: os.utime(photos / "owl/b.png", ns=(1, 1)), {"sorted"}),
        (lambda: (photos / "owl/b.png").unlink(), {"sorted"}),
        (lambda: write_picture(photos / "owl/c.png"), {"sorted"}),
        (lambda: table.write_text(LISTED.replace("owl\n", "emu\n")), both),  # it is in the folder
        (lambda: os.utime(photos / "owl", ns=(1, 1)), set()),
    ]
    for number, (change, changed) in enumerate(changes):
        before = state(photos)
        change()
        assert changed_by(photos, before) == changed, number


def test_a_faulty_csv_is_left_for_split_to_report(photos: Path) -> None:
    (photos / "birds.csv").write_bytes(b"\xff\xfe\x00")
    assert len(state(photos)["listed"]) == 64


def test_the_state_is_written_into_the_plan_of_the_data_set(photos: Path) -> None:
    project = photos.parent
    write_plan(read_params(project / "params.yaml"), project / "plan", ROOT / "stages")
    for name, text in {**state(photos), "digits": '"local_files": null'}.items():
        assert text in (project / f"plan/datasets/{name}.json").read_text(encoding="utf-8")


def test_wrong_paths_are_reported_by_their_keys_with_all_other_mistakes(photos: Path) -> None:
    (photos.parent / "reference/old-box").mkdir(parents=True)
    text = PARAMS.replace("folder, path: photos", "folder, path: photos/birds.csv")
    text = text.replace("photos/birds.csv", "photos", 1).replace("model: linear", "model: lineer")
    text = text.replace("digits, validation: 1, test: 1}", "MNIST, root: no, validation: 1}")
    compare = "compare:\n  references:\n    - old-box\n    - old-bix\n"
    write_params(photos, text.replace("experiments:", f"{compare}experiments:"))
    with pytest.raises(ConfigError) as caught:
        state(photos)
    for problem in (
        'datasets.listed.path = "photos"\n    no such CSV file',
        'datasets.sorted.path = "photos/birds.csv"\n    no such folder',
        "datasets.digits.root = ",
        "params.yaml:9 ",
        "did you mean 'old-box'",
        "experiments.first.model.name = ",
    ):
        assert problem in str(caught.value)


@pytest.mark.parametrize("path", ["..", "/", "."])
def test_a_folder_that_contains_the_project_is_refused_and_not_read(
    photos: Path, path: str
) -> None:
    write_params(photos, PARAMS.replace("path: photos,", f"path: {path},"))
    with pytest.raises(ConfigError) as caught:
        state(photos)
    place, problem = str(caught.value).splitlines()[1:]
    assert place == f'{photos.parent}/params.yaml:4  datasets.sorted.path = "{path}"'
    assert problem == "    this folder contains the project: name one with only the samples"


def test_relative_paths_start_at_the_project_and_a_tilde_at_home(
    photos: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    before = state(photos)
    monkeypatch.setenv("DVC_ROOT", str(photos.parent))
    monkeypatch.chdir(tmp_path_factory.mktemp("copy"))
    assert changed_by(photos, before) == set()
    monkeypatch.setenv("HOME", str(photos.parent))
    write_params(photos, PARAMS.replace("path: photos", "path: ~/photos"))
    assert changed_by(photos, before) == set()
