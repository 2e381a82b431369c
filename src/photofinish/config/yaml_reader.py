"""Reads params.yaml with the library that DVC reads it with, and keeps the line of each key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from photofinish.config.mistakes import ConfigProblem, KeyPath
from photofinish.errors import ConfigError

_TEXT = "tag:yaml.org,2002:str"
_MERGE = "tag:yaml.org,2002:merge"


class YamlDocument:
    """Value of a YAML file, with the line of each key."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise ConfigError(f"{path}: there is no such file") from None
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path} is not UTF-8 text (byte {error.start})") from None
        yaml = YAML(typ="safe")
        yaml.allow_duplicate_keys = True  # reported by _faulty_keys, together with all other mistakes
        constructor, _ = yaml.get_constructor_parser(text)
        try:
            self._root: Node | None = constructor.composer.get_single_node()
            self.faulty_keys = list(_faulty_keys(self._root, (), set()))
            self.value: Any = constructor.construct_document(self._root) if self._root else None
        except MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line = mark.line + 1 if mark else 1
            what = ", ".join(filter(None, (error.context, error.problem)))
            if "':'" in what:  # as in {name: net.py:Net}
                what += "; within brackets, put text with a colon in quotes"
            raise ConfigError(f"{path}:{line}  this is not valid YAML: {what}") from None
        except (YAMLError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            # ruamel.yaml passes on what Python raises for values such as `2024-13-45`.
            raise ConfigError(f"{path}  this is not valid YAML: {error}") from None
        except RecursionError:
            raise ConfigError(f"{path}  this is not valid YAML: nested too deeply") from None

    def in_words(self, mistakes: Iterable[ConfigProblem]) -> str:
        """Return two lines for each mistake, in the order of the file."""
        found = [(mistake.line or self.line_of(mistake.path), mistake) for mistake in mistakes]
        found.sort(key=lambda line_and_mistake: line_and_mistake[0])
        return "\n".join(mistake.describe(str(self._path), line) for line, mistake in found)

    def line_of(self, path: KeyPath) -> int:
        """Return the line of the key at `path`, or of its deepest parent in the file."""
        node, line = self._root, 1
        for part in path:
            found: tuple[Node, Node] | None = None
            if isinstance(node, MappingNode):
                for key, value in node.value:
                    if key.value == part:
                        found = key, value  # the last one: keys merged by `<<` stand before
            elif isinstance(node, SequenceNode) and isinstance(part, int) and part < len(node.value):
                found = node.value[part], node.value[part]
            if found is None:
                break
            line, node = found[0].start_mark.line + 1, found[1]
        return line


def _faulty_keys(node: Node | None, path: KeyPath, visited: set[int]) -> Iterator[ConfigProblem]:
    """Yield keys that are given twice, and keys that are not text. The latter become text."""
    if id(node) in visited:  # an alias
        return
    visited.add(id(node))
    if isinstance(node, MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if not isinstance(key, ScalarNode):
                raise MarkedYAMLError(problem="a key must be text", problem_mark=key.start_mark)
            name, line = str(key.value), key.start_mark.line + 1
            if name in seen:
                yield ConfigProblem((*path, name), "this key is given twice", line=line)
            elif key.tag not in (_TEXT, _MERGE):
                yield ConfigProblem((*path, name), "this key is not text: put it in quotes", line=line)
                key.tag = _TEXT
            seen.add(name)
            yield from _faulty_keys(value, (*path, name), visited)
    elif isinstance(node, SequenceNode):
        for index, value in enumerate(node.value):
            yield from _faulty_keys(value, (*path, index), visited)
