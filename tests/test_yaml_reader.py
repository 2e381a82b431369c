"""YAML is read as DVC reads it, and each key's line is known."""

from __future__ import annotations

import datetime
import re
from pathlib import Path
from typing import Any

import pytest
from dvc.utils.hydra import apply_overrides
from dvc.utils.serialize import YAMLFileCorruptedError, parse_yaml
from source_imports import ROOT

from photofinish.errors import MistakeError
from photofinish.params.yaml_reader import YamlDocument

SCALARS = """
0 1 -1 +1 007 08 017 0_7 _1 1_ 1__0 _ + - . .. +. 0b12 -0b1 +0x1 .5e3 .5e+3 5.e3 ._5 ._ 1,000 0o17 0O17 0x1F
0xg 0b11 1_000 1e3 1e-3 1E-3 1e400 12e03 1.5e3 1.5E+3 1_000.5 .5 +.5 -.5 5. 1.0 -0.0
.inf -.inf .nan .NaN nan inf 1e e5 .e5 1:30 1:30:00 -1:30 60:00 1:30.5 1.2.3 2024-01-01 2024-1-1 2024-01-01x
2024-01-01T10:20:30
true True TRUE tRue false False FALSE yes Yes no No on off y n ~ null Null NULL none None
fp32 sgd digits-mlp -x ../x a/b 'true' '1' "1e-3" [] {} [1,2]
"""

ALIKE = r"""
a: [1, 2,]|a: [,]|a: []|a: {}|a: {x: 1,}|a: {x}|a: {x, y: 1}|a: [x: 1]|a: {"x":1}|a: [a, [b, {c: d}]]|a: [1|a: ]
a: {x: 1
a: b: c|a: "b|a: 'it''s'|a: "\n"|a: "\x41"|a: "\u00e9"|a: "\ud800"|a: "\q"|a: '\n'|a: "\0"|a: ''|a: ""|a: '~'
a: "null"
a: &x 1¶b: *x|a: &x {y: 1}¶b: {<<: *x, z: 2}|a: &x {y: 1}¶b: {<<: [*x, {y: 2}], y: 3}|a: *x|b: {<<: 1}|b: {<<: [1]}
a: &x 1¶b: {<<: *x}|a: &x {y: 1}¶b: {y: 3, <<: *x}|a: &x {y: 1}¶b: {<<: *x, <<: *x}|a: &a.b 1¶c: *a.b|a: <<|a: '<<'
a: =
a: 1¶a: 2|a: {x: 1, x: 2}|a: 1¶ b: 2|a:¶- 1¶- 2|a:¶  - 1¶  -2|a: >¶  text¶  more|a: text¶  more|a: "text¶  more"
a:|a: ¦¶  text|a: ¦¶  text¶  more¶b: 1|a: ¦-¶  text|a: ¦+¶  text¶¶|a: ¦2¶   x|a: ¦9¶  x|\ta: 1|a:  1 # c|a: 1# c|# c
---|---¶a: 1|---¶a: 1¶---¶b: 2|a: 1¶...|a: 1¶...¶b: 2|%YAML 1.1¶---¶a: true|%YAML 1.2¶---¶a: yes
%TAG ! tag:x,2000:¶---¶a: 1
- 1|[1, 2]|1|text|'text'|null|{a: 1}|[]|? a¶: 1|? {a: 1}¶: 1|a: ? b|? a|a: - b|a: -b|a:b|"a":1|'a': 1|a : 1|"a" : 1
 a: 1
a: !!str 1|a: !!int "1"|a: !!int x|a: !!float 1|a: !!bool yes|a: !!bool no|a: !!null x|a: !foo 1
a: !!python/name:os.system x|a: !!seq [1]|a: !!map {x: 1}|a: !!str {x: 1}|a: !!int [1]|!!map {a: 1}
a: !!timestamp 2024-01-01|a: &p x:y¶b: [*p]
a: 1⇥# a tab|a:⇥1|a: {x:1}|a: [x:y]|a: {x: y:z}|a: [x:,y]|a: {x:}|a: [x:]|a: [:x]|a: [::]|a: [http://x]|a: {x: "y:z"}
a: ["x":1]|a: [x: , y]|a: [-1:30]|a: {x : 1}|a: [x?y]|a: [?x]|a: [?]|a: {? x : 1}|a: {x, y: z}|{x:1}|[x:y]|a: [x:{y: 1}]
a: @x|a: `x|a: %x|a: &|a: *|a: ¦|a: >|a: #x|a: x#y|a: x #y|a: ?x|a: ? x|a: :x|a: x:|a: x: y|a: x :y|a: http://x
a: a,b|a: [a,b]
a: "x" y|a: 'x' y|a: é|a: 日本|é: 1|a: 2024-01-01 10:20:30|a: 2024-02-30|a: 2024-13-45|a: 0000-00-00
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


def read_here(params_file: Path, text: str) -> str:
    """What is read, as text: to Python, 1, 1.0 and true are equal, and nan equals nothing."""
    try:
        read = document(params_file, text)
    except MistakeError:
        return "refused"
    return "refused" if read.faulty_keys else repr(read.value or {})


def read_by_dvc(text: str) -> str:
    try:
        return repr(parse_yaml(text, "params.yaml"))
    except (YAMLFileCorruptedError, ArithmeticError, LookupError, TypeError, ValueError):
        return "refused"


@pytest.mark.parametrize(
    "file", [ROOT / "params.yaml", *(ROOT / "examples").glob("*.yaml")], ids=lambda file: file.stem
)
def test_dvc_changes_no_line_of_our_files_but_those_it_is_told_to(file: Path, params_file: Path) -> None:
    before = file.read_text(encoding="utf-8")
    params_file.write_text(before, encoding="utf-8")
    apply_overrides(params_file, ["defaults.epochs=777", "defaults.optimizer.lr=0.000777"])  # as `dvc exp run -S` does
    after = params_file.read_text(encoding="utf-8").splitlines()
    new = [line for line, was in zip(after, before.splitlines(), strict=True) if line != was]
    assert [line.count("777") for line in new] == [1, 1]


@pytest.mark.parametrize("written", SCALARS.split())
def test_a_value_is_what_dvc_takes_it_for(params_file: Path, written: str) -> None:
    text = f"key: {written}\n"
    assert read_here(params_file, text) == read_by_dvc(text)


@pytest.mark.parametrize("line", ALIKE.strip().splitlines())
def test_an_awkward_document_is_what_dvc_takes_it_for_or_both_refuse_it(params_file: Path, line: str) -> None:
    for text in (part.replace("¶", "\n").replace("¦", "|").replace("⇥", "\t") + "\n" for part in line.split("|")):
        assert read_here(params_file, text) == read_by_dvc(text), text


@pytest.mark.parametrize("written", ["!!binary aGk=", "!!set {x}", "!!omap [x: 1]", "[!mine 1]", "{x: !!pairs [x: 1]}"])
def test_a_value_that_json_has_no_form_of_is_refused_with_its_tag_and_line(params_file: Path, written: str) -> None:
    tag = re.escape(re.findall("!+[a-z]+", written)[0])
    with pytest.raises(MistakeError, match=f":2  this is not valid YAML: {tag} is no plain value: write text, a"):
        document(params_file, f"a: 1\nb: {written}\n")


@pytest.mark.parametrize("text", ["a: &x [*x]", "? [a, b]\n: 1", "1: a", "a: &x {y: 1}\n<<: *x\nb: 1\nb: 2"])
def test_what_dvc_may_read_and_no_setting_can_be_is_refused(params_file: Path, text: str) -> None:
    assert read_here(params_file, f"{text}\n") == "refused"


@pytest.mark.parametrize(
    ("written", "value"),
    [("1e-3", 0.001), ("yes", "yes"), ("~", None), ("1:30", "1:30"), ("2024-01-01", datetime.date(2024, 1, 1))],
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
    found = [(key.path, key.line) for key in read.faulty_keys]
    assert found == [(("b", 0, "c"), 3), (("d", "1"), 5), (("a",), 6)]
    assert {key.problem for key in read.faulty_keys} == {"this key is given twice"}


def test_a_faulty_key_has_its_own_line_where_the_block_around_it_is_given_again(params_file: Path) -> None:
    read = document(params_file, "a:\n  {x: 0,1}\n2: b\na:\n  y: 1\n")
    assert re.findall(r":([0-9]+)  ", read.in_words(read.faulty_keys)) == ["2", "3", "4"]


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
