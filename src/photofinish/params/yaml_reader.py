"""Reading YAML the way DVC reads it (YAML 1.2), remembering the line of each key."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import Composer

from photofinish.errors import MistakeError
from photofinish.params.mistakes import KeyPath, Mistake
from photofinish.wording import shortened

_TAG = "tag:yaml.org,2002:"
_DEEPEST = 50
_TOO_DEEP = f"nested deeper than {_DEEPEST} levels"
_MOST_DIGITS = 1000
_MOST_VALUES = 500_000
_PLAIN = ("str", "int", "float", "bool", "null", "timestamp", "map", "seq")
_TYPES_IN_WORDS = {
    "int": "a number",
    "float": "a number",
    "bool": "true or false",
    "null": "nothing",
    "timestamp": "a date",
}


class _Loader(Composer, yaml.CSafeLoader):
    """PyYAML with YAML 1.2's scalars: `1e-3` is a number, `no` is a word, `1:30` is text, as DVC sees them.

    libyaml reads the text, in a fifth of the time of Python's own parser. Its nodes are composed in Python: in C,
    brackets nested deep enough end the whole process.
    """

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012  # PyYAML's own name

    def __init__(self, text: str) -> None:
        yaml.CSafeLoader.__init__(self, text)
        Composer.__init__(self)
        self._values = 0  # so far, with those that aliases stand for
        self._sizes: dict[yaml.Node, int] = {}  # in values

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Refuse aliases that stand for more than anyone would write, and what DVC's reader doesn't take."""
        event: Any = self.peek_event()
        before = self._values
        node = super().compose_node(parent, index)
        assert node is not None
        if isinstance(event, yaml.AliasEvent):
            self._values += self._sizes.get(node, _MOST_VALUES)  # within what it stands for, it has no end
        else:
            self._values += 1
            self._sizes[node] = self._values - before
        in_brackets = isinstance(parent, yaml.CollectionNode) and parent.flow_style
        if self._values > _MOST_VALUES:
            problem = f"more than {_MOST_VALUES:,} values, with those that aliases stand for"
        elif in_brackets and isinstance(event, yaml.ScalarEvent) and not event.style and re.search("[:?]", event.value):
            found = shortened(repr(event.value))
            problem = f"{found} within brackets: put a space behind the colon, or all of it in quotes"
        elif parent and index is not None and node.tag.removeprefix(_TAG) not in _PLAIN:
            tag = shortened(node.tag.replace(_TAG, "!!"))
            problem = f"{tag} is no plain value: write text, a number, a list or a mapping"
        else:
            return node
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """PyYAML meets a value that isn't of its type (`2024-13-45`) with whatever error Python's own parser has."""
        try:
            return super().construct_object(node, deep)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            problem = f"{shortened(repr(node.value))} can't be read as {node.tag.removeprefix(_TAG)}"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from None

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """YAML 1.2 has no octal numbers by a mere leading zero."""
        digits = node.value.replace("_", "")
        if len(digits) > _MOST_DIGITS:
            raise ValueError(f"more than {_MOST_DIGITS} digits")
        return int(digits, 0 if re.match("[-+]?0[box]", digits) else 10)


_FIRST_OF_NUMBER = "-+.0123456789"
for _type, _pattern, _first in (
    ("merge", r"<<", "<"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?(0b[01_]+|0o?[0-7_]+|[0-9_]+|0x[0-9a-fA-F_]+)", _FIRST_OF_NUMBER),
    (
        "float",
        r"[-+]?[0-9][0-9_]*(\.[0-9_]*([eE][-+]?[0-9]+)?|[eE][-+]?[0-9]+)|[-+]?\.[0-9_]+([eE][-+][0-9]+)?"
        r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        _FIRST_OF_NUMBER,
    ),
    (
        "timestamp",
        r"[0-9]{4}-[0-9]{2}-[0-9]{2}(([Tt]|[ \t]+)[0-9]{1,2}:[0-9]{2}:[0-9]{2}(\.[0-9]*)?"
        r"([ \t]*(Z|[-+][0-9]{1,2}(:[0-9]{2})?))?)?",
        "0123456789",
    ),
    ("value", "=", "="),  # which no reader can construct
):
    _Loader.add_implicit_resolver(_TAG + _type, re.compile(rf"^({_pattern})$"), list(_first))
_Loader.add_constructor(_TAG + "int", _Loader.construct_yaml_int)


class YamlDocument:
    """The plain value of a YAML file, the line of each key in it, and what is wrong with the keys themselves."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise MistakeError(f"{path}  there is no such file; it says what to run") from None
        except UnicodeDecodeError as error:
            raise MistakeError(f"{path}  this is not UTF-8 text (byte {error.start})") from None
        except OSError as error:
            raise MistakeError(f"{path}  can't be read: {error.strerror}") from None
        try:
            loader = _Loader(text)
            self._root = loader.get_single_node()
            self.faulty_keys = _faulty_keys(self._root, ())
            self.value: Any = loader.construct_document(self._root) if self._root else None
        except yaml.MarkedYAMLError as error:
            mark, began = error.problem_mark or error.context_mark, error.context_mark
            line = mark.line + 1 if mark else 1
            context = f"{error.context} that begins in line {began.line + 1}" if began else error.context
            problem = ", ".join(filter(None, (context, error.problem)))
            raise MistakeError(f"{path}:{line}  this is not valid YAML: {problem}") from None
        except yaml.reader.ReaderError as error:
            line = text.encode().count(b"\n", 0, error.position) + 1
            raise MistakeError(
                f"{path}:{line}  this is not valid YAML: it has a character {chr(error.character)!a}"
            ) from None
        except RecursionError:
            raise MistakeError(f"{path}  this is not valid YAML: {_TOO_DEEP}") from None

    def in_words(self, mistakes: Iterable[Mistake]) -> str:
        """Two lines for each, in the order of the file."""
        found = [(mistake.line or self.line_of(mistake.path), mistake) for mistake in mistakes]
        found.sort(key=lambda line_and_mistake: line_and_mistake[0])
        return "\n".join(mistake.describe(str(self._path), line) for line, mistake in found)

    def line_of(self, path: KeyPath) -> int:
        """The line of the key at `path`, or of the deepest part of it that the file has."""
        node, line = self._root, 1
        for part in path:
            found: tuple[yaml.Node, yaml.Node] | None = None
            if isinstance(node, yaml.MappingNode):  # the last such key: before it are those that `<<` brought in
                found = next(((key, value) for key, value in reversed(node.value) if key.value == part), None)
            elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
                found = node.value[part], node.value[part]
            if found is None:
                break
            line, node = found[0].start_mark.line + 1, found[1]
        return line


def _decimal_commas(node: yaml.MappingNode, path: KeyPath) -> list[Mistake]:
    """`{lr: 0,1}`, of which YAML makes a key 1 without a value: taken out, so that it is told once."""
    found, kept = [], node.value[:1]
    for before, pair in pairwise(node.value):
        name, whole, (part, nothing) = before[0].value, before[1], pair
        is_number = part.tag == whole.tag == f"{_TAG}int"
        if node.flow_style and is_number and isinstance(nothing, yaml.ScalarNode) and not nothing.value:
            problem = f"has a comma where a decimal point belongs: {name}: {whole.value}.{part.value}"
            found.append(Mistake((*path, str(name)), problem, line=part.start_mark.line + 1))
        else:
            kept.append(pair)
    node.value[:] = kept
    return found


def _faulty_keys(node: yaml.Node | None, path: KeyPath) -> list[Mistake]:
    """Keys given twice, of which PyYAML silently keeps the last, and keys that aren't text, which become it here."""
    if node and len(path) > _DEEPEST:
        raise yaml.MarkedYAMLError(problem=_TOO_DEEP, problem_mark=node.start_mark)
    found: list[Mistake] = []
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        found += _decimal_commas(node, path)
        for key, value in node.value:
            name, line = str(key.value), key.start_mark.line + 1
            if name in seen:
                found.append(Mistake((*path, name), "this key is given twice", line=line))
            elif isinstance(key, yaml.ScalarNode) and (read_as := key.tag.removeprefix(_TAG)) not in ("str", "merge"):
                words = _TYPES_IN_WORDS.get(read_as, "something else than text")
                problem = f"YAML reads this key as {words}: put it in quotes"
                found.append(Mistake((*path, name), problem, line=line))
                key.tag = _TAG + "str"
            seen.add(name)
            found += _faulty_keys(value, (*path, name))
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            found += _faulty_keys(value, (*path, index))
    return found
