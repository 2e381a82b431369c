"""A YAML file as DVC reads it, and the line of each key and problem in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.constructor import BaseConstructor
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from photofinish.config.problems import KeyPath
from photofinish.errors import ConfigError
from photofinish.wording import printable

_TEXT, _MERGE = "tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"
_MOST_LEVELS = 100
_MOST_VALUES = 1_000_000
"""Values that a file may have once its aliases are unfolded."""


def parse_yaml(path: Path) -> tuple[Any, Node | None]:
    """Return the value of a YAML file as JSON has it, read as DVC reads it, and its nodes."""
    try:
        data = path.read_bytes()
        text = data.decode("utf-8")
        constructor, _ = YAML(typ="safe").get_constructor_parser(text)
        root = constructor.composer.get_single_node()
        if root is None:
            return None, None
        checks = _Checks()
        checks.visit(root)
        _raise_if_any(path, checks.problems)
        try:
            document = constructor.construct_document(root)
        except (ArithmeticError, LookupError, ValueError):  # Python's, for 2024-13-45
            _raise_if_any(path, checks.unreadable(constructor))
            raise
        return json.loads(json.dumps(document, default=str)), root
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}  this is not UTF-8: save the file as UTF-8") from None
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError(f"{path}:{line}  this is not valid YAML: {error.reason}") from None
    except RecursionError:
        raise ConfigError(f"{path} has more than {_MOST_LEVELS} levels of values") from None
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = printable(" ".join(filter(None, (error.context, error.problem))))
        hint = "; put text with a colon in quotes" if "':'" in problem else ""
        line = mark.line + 1 if mark else 1
        raise ConfigError(f"{path}:{line}  this is not valid YAML: {problem}{hint}") from None


def _raise_if_any(path: Path, problems: list[tuple[int, str]]) -> None:
    if problems:
        lines = [f"{path}:{line}  {printable(problem)}" for line, problem in sorted(problems)]
        raise ConfigError("\n".join(lines))


class _Checks:
    """Problems of a file's nodes by line, before any of its aliases is unfolded."""

    def __init__(self) -> None:
        self.problems: list[tuple[int, str]] = []
        self._sizes: dict[int, int] = {}
        self._within: set[int] = set()
        self._scalars: list[ScalarNode] = []

    def visit(self, node: Node, level: int = 0) -> int:
        """Return the number of values in a node with all aliases unfolded."""
        if isinstance(node, ScalarNode):
            self._scalars.append(node)
            return 1
        if id(node) in self._sizes:
            return self._sizes[id(node)]
        if id(node) in self._within:
            return self._report(node, "an alias here names the value that it is in")
        if level > _MOST_LEVELS:
            return self._report(node, f"this has more than {_MOST_LEVELS} levels")
        self._within.add(id(node))
        values = node.value
        if isinstance(node, MappingNode):
            values = [value for _, value in node.value]
            for key, _ in node.value:
                self._check_key(key)
        size = 1 + sum(self.visit(value, level + 1) for value in values)
        if size > _MOST_VALUES:
            size = self._report(node, f"aliases unfold this to {size:,} values, which is too many")
        self._within.remove(id(node))
        self._sizes[id(node)] = size
        return size

    def unreadable(self, constructor: BaseConstructor) -> list[tuple[int, str]]:
        """Return the values that no Python value can be made of."""
        problems = []
        for node in self._scalars:
            try:
                constructor.construct_document(node)
            except (ArithmeticError, LookupError, ValueError):
                problem = f"{node.value} is no {_kind(node)}: correct it, or put text in quotes"
                problems.append((node.start_mark.line + 1, problem))
        return problems

    def _check_key(self, key: Node) -> None:
        if not isinstance(key, ScalarNode):
            self._report(key, "a key must be text, not a list or mapping")
        elif key.tag not in (_TEXT, _MERGE):
            quoted = f'"{key.value}"'
            self._report(key, f"the key {key.value} is no text ({_kind(key)}): write {quoted}")

    def _report(self, node: Node, problem: str) -> int:
        self.problems.append((node.start_mark.line + 1, problem))
        return 1


def _kind(node: Node) -> str:
    """Return `int` for the tag `tag:yaml.org,2002:int`."""
    return str(node.tag).rpartition(":")[2]


def line_of(node: Node | None, path: KeyPath) -> int:
    """Return the line of the key at `path`, or of its deepest parent in the file."""
    line = 1
    for part in path:
        children: dict[Any, tuple[Node, Node]] = {}
        if isinstance(node, MappingNode):  # keys merged by `<<` come first
            children = {key.value: (key, value) for key, value in node.value if key.id == "scalar"}
        elif isinstance(node, SequenceNode):
            children = {index: (item, item) for index, item in enumerate(node.value)}
        if part not in children:
            break
        key, node = children[part]
        line = key.start_mark.line + 1
    return line
