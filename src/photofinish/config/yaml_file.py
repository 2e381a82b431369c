"""A YAML file as DVC reads it, and the line of each key and problem in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import chain
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

_TEXT, _MERGE = "tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"
_DEEPEST, _MOST_VALUES, _LONGEST_NUMBER = 100, 50_000, 1000
"""Limits far above what anyone writes, so that no file makes `plan` hang or fail."""
_TOO_MANY = f"with aliases written out, it has more than {_MOST_VALUES:,} values"


def parse_yaml(path: Path) -> tuple[Any, Node | None]:
    """Return the value of a YAML file as JSON has it, read as DVC reads it, and its nodes."""
    try:
        data = path.read_bytes()
        text = data.decode("utf-8")
        _check_size(text)
        constructor, _ = YAML(typ="safe").get_constructor_parser(text)
        root = constructor.composer.get_single_node()
        if root is None:
            return None, None
        if problems := sorted(_key_problems(root, set())):
            lines = [f"{path}:{line}  {printable(problem)}" for line, problem in problems]
            raise ConfigError("\n".join(lines))
        _check_values(root, {}, constructor.construct_object)
        document = constructor.construct_document(root)
        return json.loads(json.dumps(document, default=str)), root
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}  this is not UTF-8: save the file as UTF-8") from None
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError(f"{path}:{line}  this is not valid YAML: {error.reason}") from None
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = printable(" ".join(filter(None, (error.context, error.problem))))
        hint = "; put text with a colon in quotes" if "':'" in problem else ""
        line = mark.line + 1 if mark else 1
        raise ConfigError(f"{path}:{line}  this is not valid YAML: {problem}{hint}") from None


def _check_size(text: str) -> None:
    """Raise MarkedYAMLError for nesting that would exhaust Python's stack, or for many values."""
    depth = 0
    for number, event in enumerate(YAML(typ="safe").parse(text)):
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
        if depth > _DEEPEST:
            problem = f"it is nested more than {_DEEPEST} deep"
            raise MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
        if number > _MOST_VALUES:
            raise MarkedYAMLError(problem=_TOO_MANY, problem_mark=event.start_mark)


def _check_values(node: Node, counts: dict[int, int], construct: Callable[[Node], Any]) -> int:
    """Return how many values a node is with its aliases written out, as `parse_yaml` returns it.

    Raise MarkedYAMLError if they are too many, or if a value can't be constructed.
    """
    if isinstance(node, ScalarNode):
        if node.tag not in (_TEXT, _MERGE):
            _check_scalar(node, construct)
        return 1
    if (count := counts.get(id(node))) is None:
        counts[id(node)] = 0
        is_mapping = isinstance(node, MappingNode)
        children = chain.from_iterable(node.value) if is_mapping else node.value
        count = 1 + sum(_check_values(child, counts, construct) for child in children)
        counts[id(node)] = count
    if not 0 < count <= _MOST_VALUES:
        problem = _TOO_MANY if count else "an alias in it names itself"
        raise MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
    return count


def _check_scalar(node: ScalarNode, construct: Callable[[Node], Any]) -> None:
    """Raise MarkedYAMLError if Python can't make the value, or can't print it."""
    kind = str(node.tag).rpartition(":")[2]  # of tag:yaml.org,2002:int
    problem = f'"{shortened(node.value)}" is no {kind}: put text in quotes'
    if kind in ("int", "float") and len(node.value) > _LONGEST_NUMBER:
        problem = f"a number has {len(node.value):,} characters"
    else:
        try:
            construct(node)
        except (ValueError, LookupError, ArithmeticError):  # from Python's int or date, for example
            pass
        else:
            return
    raise MarkedYAMLError(problem=problem, problem_mark=node.start_mark)


def _key_problems(node: Node, visited: set[int]) -> Iterator[tuple[int, str]]:
    """Yield the keys that are no text, which JSON would change, with their lines."""
    if isinstance(node, ScalarNode) or id(node) in visited:  # an alias
        return
    visited.add(id(node))
    values = node.value
    if isinstance(node, MappingNode):
        values = [value for _, value in node.value]
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, ScalarNode):
                yield line, "a key must be text, not a list or mapping"
            elif key.tag not in (_TEXT, _MERGE):
                kind = str(key.tag).rpartition(":")[2]  # of tag:yaml.org,2002:int
                yield line, f'the key {key.value} is no text ({kind}): write "{key.value}"'
    for value in values:
        yield from _key_problems(value, visited)


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
