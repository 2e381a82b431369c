"""params.yaml is read as DVC reads it, and each key's line is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from dvc.utils.hydra import apply_overrides
from dvc.utils.serialize import parse_yaml
from source_imports import ROOT

from photofinish.config.yaml_reader import YamlDocument

TEXT = """\
# a comment
defaults:
  epochs: 10

  optimizer: {name: sgd,
    lr: 0.1}
experiments:
  mlp:
    model:
      hidden:
        - 32
        - 16
"""


def document(params_file: Path, text: str) -> YamlDocument:
    params_file.write_text(text, encoding="utf-8")
    return YamlDocument(params_file)


@pytest.mark.parametrize(
    "file", [ROOT / "params.yaml", *(ROOT / "examples").glob("*.yaml")], ids=lambda file: file.stem
)
def test_dvc_changes_no_line_of_our_files_except_those_it_is_asked_to(file: Path, params_file: Path) -> None:
    before = file.read_text(encoding="utf-8")
    params_file.write_text(before, encoding="utf-8")
    apply_overrides(params_file, ["defaults.epochs=777", "defaults.optimizer.lr=0.000777"])  # as `dvc exp run -S` does
    after = params_file.read_text(encoding="utf-8").splitlines()
    new = [line for line, was in zip(after, before.splitlines(), strict=True) if line != was]
    assert [line.count("777") for line in new] == [1, 1]


@pytest.mark.parametrize(
    ("written", "value"),
    [("1e-3", 0.001), ("yes", "yes"), ("~", None), ("1:30", "1:30"), ("017", 17), ("[1, 2]", [1, 2])],
)
def test_a_value_is_what_dvc_reads(params_file: Path, written: str, value: Any) -> None:
    text = f"key: {written}\n"
    assert document(params_file, text).value == parse_yaml(text, "params.yaml") == {"key": value}


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ((), 1),
        (("defaults",), 2),
        (("defaults", "epochs"), 3),
        (("defaults", "optimizer", "lr"), 6),
        (("defaults", "optimizer", "momentum"), 5),  # not there: the line of its parent
        (("experiments", "mlp", "model", "hidden", 1), 12),
        (("devices", "cpu"), 1),
    ],
)
def test_a_key_has_the_line_it_is_written_on(params_file: Path, path: tuple[str | int, ...], line: int) -> None:
    assert document(params_file, TEXT).line_of(path) == line


def test_a_key_that_overrides_a_merged_one_has_its_own_line(params_file: Path) -> None:
    read = document(params_file, "a: &base\n  x: 1\n  y: 1\nb:\n  <<: *base\n  y: 2\n")
    assert read.faulty_keys == []
    assert read.value["b"] == {"x": 1, "y": 2}
    assert (read.line_of(("b", "y")), read.line_of(("b", "x"))) == (6, 2)


def test_keys_given_twice_and_keys_that_are_not_text_are_found_at_every_level(params_file: Path) -> None:
    read = document(params_file, "a: 1\nb:\n  - {c: 1, c: 2}\nd: {'1': 1, \n 1: 2}\na: 2\ntrue: 3\n")
    found = [(key.path, key.line) for key in read.faulty_keys]
    assert found == [(("b", 0, "c"), 3), (("d", "1"), 5), (("a",), 6), (("true",), 7)]
    assert "true" in read.value


def test_an_empty_file_has_no_value_and_a_byte_order_mark_is_no_part_of_a_key(params_file: Path) -> None:
    assert document(params_file, "").value is None
    assert document(params_file, "\ufeffa: 1\n").value == {"a": 1}
