"""A YAML file as DVC reads it, and the line of each key and problem in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.events import CollectionEndEvent, CollectionStartEvent
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from photofinish.config.problems import KeyPath
from photofinish.errors import ConfigError
from photofinish.wording import printable, shortened

_TOO_DEEP = 100
"""Levels of nesting. No setting has ten, and pydantic reads JSON of fewer than 200."""
_TEXT, _MERGE = "tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"


def parse_yaml(path: Path) -> tuple[Any, Node | None]:
    """Return the value of a YAML file as JSON has it, read as DVC reads it, and its nodes."""
    try:
        data = path.read_bytes()
        text = data.decode("utf-8")
        _check_depth(path, text)
        constructor, _ = YAML(typ="safe").get_constructor_parser(text)
        root = constructor.composer.get_single_node()
        if root is None:
            return None, None
        if problems := sorted(_problems(root, constructor.construct_object, set())):
            lines = [f"{path}:{line}  {printable(problem)}" for line, problem in problems]
            raise ConfigError("\n".join(lines))
        document = constructor.construct_document(root)
        return json.loads(json.dumps(document, default=str)), root
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}  this is not UTF-8: save the file as UTF-8") from None
    except ValueError as error:  # an alias names itself
        raise ConfigError(f"{path} can't be read: {error}") from None
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError(f"{path}:{line}  this is not valid YAML: {error.reason}") from None
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = printable(" ".join(filter(None, (error.context, error.problem))))
        hint = "; put text with a colon in quotes" if "':'" in problem else ""
        line = mark.line + 1 if mark else 1
        raise ConfigError(f"{path}:{line}  this is not valid YAML: {problem}{hint}") from None


def _check_depth(path: Path, text: str) -> None:
    """Raise ConfigError for nesting so deep that reading it would end in a crash."""
    depth = 0
    for event in YAML(typ="safe").parse(text):
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
        if depth >= _TOO_DEEP:
            line = event.start_mark.line + 1
            problem = f"this is nested {depth} levels deep: close a bracket, or indent less"
            raise ConfigError(f"{path}:{line}  {problem}")


def _problems(
    node: Node, construct: Callable[[Node], Any], visited: set[int]
) -> Iterator[tuple[int, str]]:
    """Yield values that Python can't make, and keys that JSON would change, with their lines."""
    if id(node) in visited:  # an alias
        return
    visited.add(id(node))
    values = node.value
    if isinstance(node, ScalarNode):
        values = []
        try:
            construct(node)
        except (ValueError, LookupError, ArithmeticError):  # from Python's int or date, for example
            kind = str(node.tag).rpartition(":")[2]  # of tag:yaml.org,2002:int
            text = shortened(node.value)
            yield node.start_mark.line + 1, f'"{text}" is not a valid {kind}: put text in quotes'
    elif isinstance(node, MappingNode):
        values = [value for _, value in node.value]
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, ScalarNode):
                yield line, "a key must be text, not a list or mapping"
            elif key.tag not in (_TEXT, _MERGE):
                kind = str(key.tag).rpartition(":")[2]
                yield line, f'the key {key.value} is not text ({kind}): write "{key.value}"'
    for value in values:
        yield from _problems(value, construct, visited)


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
