"""Reading YAML the way DVC reads it (YAML 1.2), remembering the line of each key."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from photofinish.errors import MistakeError

KeyPath = tuple[str | int, ...]


class _Loader(yaml.SafeLoader):
    """PyYAML with YAML 1.2's scalars: `1e-3` is a number, `no` is a word, `1:30` is text, as DVC sees them."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012  # PyYAML's own name


_FIRST_OF_NUMBER = list("-+.0123456789")
_Loader.add_implicit_resolver("tag:yaml.org,2002:merge", re.compile(r"^<<$"), ["<"])
_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"^(~|null|Null|NULL|)$"), ["~", "n", "N", ""])
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^([Tt]rue|TRUE|[Ff]alse|FALSE)$"), list("tTfF"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^[-+]?(0|[1-9][0-9]*)$"), _FIRST_OF_NUMBER)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"^([-+]?(\.[0-9]+|[0-9]+\.[0-9]*)([eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+"
        r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$"
    ),
    _FIRST_OF_NUMBER,
)


class YamlDocument:
    """The plain value of a YAML file, the line of each key in it, and the keys given twice."""

    def __init__(self, path: Path) -> None:
        self.path = path
        loader = _Loader(_read_text(path))
        try:
            self._root = loader.get_single_node()
            self.duplicates = list(_duplicate_keys(self._root, ()))
            self.value: Any = loader.construct_document(self._root) if self._root else None
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line = mark.line + 1 if mark else 1
            raise MistakeError(f"{path}:{line}  this is not valid YAML: {error.problem or error.context}") from None
        except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
            raise MistakeError(f"{path}  this is not valid YAML: {error}") from None
        finally:
            loader.dispose()

    def line_of(self, path: KeyPath) -> int:
        """The line of the key at `path`, or of the deepest part of it that the file has."""
        node, line = self._root, 1
        for part in path:
            found = _child(node, part)
            if found is None:
                break
            line, node = found
        return line


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise MistakeError(f"{path}  there is no such file; it says what to run") from None
    except UnicodeDecodeError as error:
        raise MistakeError(f"{path}  this is not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise MistakeError(f"{path}  can't be read: {error.strerror}") from None


def _child(node: yaml.Node | None, part: str | int) -> tuple[int, yaml.Node] | None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == str(part):
                return key.start_mark.line + 1, value
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part].start_mark.line + 1, node.value[part]
    return None


def _duplicate_keys(node: yaml.Node | None, path: KeyPath, depth: int = 0) -> list[tuple[KeyPath, int]]:
    """Keys given twice in one mapping: YAML forbids them, PyYAML silently keeps the last."""
    if depth > 50:
        raise yaml.YAMLError("nested deeper than 50 levels")
    found: list[tuple[KeyPath, int]] = []
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            name = str(key.value)
            if name in seen:
                found.append(((*path, name), key.start_mark.line + 1))
            seen.add(name)
            found += _duplicate_keys(value, (*path, name), depth + 1)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            found += _duplicate_keys(value, (*path, index), depth + 1)
    return found
