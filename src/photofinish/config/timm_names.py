"""Networks of timm and their arguments, read from its source files: `plan` need not import it."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from photofinish.custom.reference import TIMM, file_of_module
from photofinish.wording import did_you_mean

_NETWORK = re.compile(r"^@register_model\ndef (\w+)\(", re.MULTILINE)
_FACTORY = "_factory.py"


def network_problem(name: str) -> str | None:
    """Return why timm has no such network, or None. The part after a dot names weights."""
    network, files = name.partition(".")[0], _files()
    if not files or any(network in names for names in files.values()):
        return None
    if any(f"'{network}'" in file.read_text(encoding="utf-8") for file in files):
        return None  # an old name
    networks = [each for names in files.values() for each in names]
    hint = did_you_mean(network, networks)
    return f"timm has no network {network};{hint} timm.list_models() has all"


def arguments(name: str) -> tuple[str, ...]:
    """Return the arguments of all functions that may receive a network's arguments.

    They are in the network's file, the files it imports, and timm's `create_model`. Returns an
    empty tuple if there is no such network.
    """
    network = name.partition(".")[0]
    for file, networks in _files().items():
        if network in networks:
            files = (file, *_neighbours(file), file.with_name(_FACTORY))
            return tuple(dict.fromkeys(each for one in files for each in _taken_in(one)))
    return ()


@cache
def _files() -> dict[Path, list[str]]:
    """Return the networks that each file of timm defines."""
    package = file_of_module(f"{TIMM}.models")
    if package is None:
        return {}
    files = sorted(package.parent.glob("*.py"))
    return {file: _NETWORK.findall(file.read_text(encoding="utf-8")) for file in files}


@cache
def _neighbours(file: Path) -> list[Path]:
    """Return the timm files that a file imports, to which it may pass arguments."""
    found = []
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.append(file.with_name(f"{node.module.removeprefix(f'{TIMM}.models.')}.py"))
    return [neighbour for neighbour in found if neighbour.is_file()]


@cache
def _taken_in(file: Path) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.arguments):
            every = (*node.posonlyargs, *node.args, *node.kwonlyargs)
            names += [argument.arg for argument in every]
    return names
