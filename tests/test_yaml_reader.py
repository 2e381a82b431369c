"""YAML is read as DVC reads it, and each key's line is known."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest
from dvc.utils.serialize import parse_yaml

from photofinish.errors import MistakeError
from photofinish.params.yaml_reader import YamlDocument

SCALARS = """
0 1 -1 +1 007 08 0o17 0O17 0x1F 0xg 0b11 1_000 1e3 1e-3 1E-3 1e400 12e03 1.5e3 1.5E+3 1_000.5 .5 +.5 -.5 5. 1.0 -0.0
.inf -.inf .nan .NaN nan inf 1e e5 .e5 1:30 1:30:00 1:30.5 1.2.3 2024-01-01 2024-1-1 2024-01-01x 2024-01-01T10:20:30
true True TRUE tRue false False FALSE yes Yes no No on off y n ~ null Null NULL none None
fp32 sgd digits-mlp -x ../x a/b 'true' '1' "1e-3" [] {} [1,2]
"""

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


@pytest.mark.parametrize("written", SCALARS.split())
def test_a_value_is_what_dvc_takes_it_for(params_file: Path, written: str) -> None:
    text = f"key: {written}\n"
    ours, dvcs = document(params_file, text).value["key"], parse_yaml(text, params_file)["key"]
    assert type(ours) is type(dvcs)
    assert repr(ours) == repr(dvcs)  # nan equals nothing


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1e-3", 0.001),
        ("-1", -1),
        ("true", True),
        ("yes", "yes"),
        ("off", "off"),
        ("~", None),
        ("1:30", "1:30"),
        ("2024-01-01", datetime.date(2024, 1, 1)),
        (".5e3", 500.0),  # to DVC it is text
    ],
)
def test_a_value_is_of_the_type_yaml_1_2_gives_it(params_file: Path, written: str, value: Any) -> None:
    assert document(params_file, f"key: {written}\n").value == {"key": value}


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ((), 1),
        (("defaults",), 2),
        (("defaults", "epochs"), 3),
        (("defaults", "optimizer", "name"), 5),
        (("defaults", "optimizer", "lr"), 6),
        (("defaults", "optimizer", "momentum"), 5),  # not there: the line of what it belongs in
        (("experiments", "mlp", "model", "hidden", 0), 11),
        (("experiments", "mlp", "model", "hidden", 1), 12),
        (("experiments", "mlp", "model", "hidden", 2), 10),
        (("devices", "cpu"), 1),
    ],
)
def test_a_key_has_the_line_it_is_written_on(params_file: Path, path: tuple[str | int, ...], line: int) -> None:
    assert document(params_file, TEXT).line_of(path) == line


def test_a_key_that_overrides_a_merged_one_has_its_own_line(params_file: Path) -> None:
    read = document(params_file, "a: &base\n  x: 1\n  y: 1\nb:\n  <<: *base\n  y: 2\n")
    assert read.value["b"] == {"x": 1, "y": 2}
    assert (read.line_of(("b", "y")), read.line_of(("b", "x"))) == (6, 2)


def test_keys_given_twice_are_found_at_every_level_with_their_lines(params_file: Path) -> None:
    read = document(params_file, "a: 1\nb:\n  - {c: 1, c: 2}\nd: {'1': 1, \n 1: 2}\na: 2\n")
    assert [(key.path, key.line) for key in read.faulty_keys] == [(("b", 0, "c"), 3), (("d", "1"), 5), (("a",), 6)]
    assert {key.problem for key in read.faulty_keys} == {"this key is given twice"}


def test_a_key_that_is_no_text_is_found_and_read_as_written(params_file: Path) -> None:
    read = document(params_file, "1e3: a\ntrue: b\n'2': c\n~: d\n")
    assert read.value == {"1e3": "a", "true": "b", "2": "c", "~": "d"}
    assert [key.path for key in read.faulty_keys] == [("1e3",), ("true",), ("~",)]


def test_a_good_file_has_no_faulty_keys(params_file: Path) -> None:
    assert document(params_file, TEXT).faulty_keys == []


def test_an_empty_file_holds_nothing(params_file: Path) -> None:
    assert document(params_file, "").value is None


def test_a_byte_order_mark_is_no_part_of_the_first_key(params_file: Path) -> None:
    assert document(params_file, "\ufeffa: 1\n").value == {"a": 1}


def test_50_levels_are_read_and_51_are_refused(params_file: Path) -> None:
    assert document(params_file, "[" * 51 + "]" * 51).value
    with pytest.raises(MistakeError, match="nested deeper than 50 levels"):
        document(params_file, "[" * 52 + "]" * 52)
