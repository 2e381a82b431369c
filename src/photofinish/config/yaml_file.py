"""A YAML file as DVC reads it, and the line of each key and problem in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.nodes import MappingNode, Node, SequenceNode
from ruamel.yaml.reader import ReaderError

from photofinish.config.problems import KeyPath
from photofinish.errors import ConfigError
from photofinish.wording import printable


def parse_yaml(path: Path) -> tuple[Any, Node | None]:
    """Return the value of a YAML file as JSON has it, read as DVC reads it, and its nodes."""
    try:
        text = path.read_bytes().decode("utf-8")
        constructor, _ = YAML(typ="safe").get_constructor_parser(text)
        root = constructor.composer.get_single_node()
        if root is None:
            return None, None
        document = constructor.construct_document(root)
        return json.loads(json.dumps(document, default=str)), root
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}") from error
    except (ReaderError, ValueError, TypeError, LookupError) as error:
        # Bytes that are not UTF-8, or values that Python can't make.
        raise ConfigError(f"{path} can't be read: {error}") from None
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = printable(" ".join(filter(None, (error.context, error.problem))))
        hint = "; put text with a colon in quotes" if "':'" in problem else ""
        line = mark.line + 1 if mark else 1
        raise ConfigError(f"{path}:{line}  this is not valid YAML: {problem}{hint}") from None


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
