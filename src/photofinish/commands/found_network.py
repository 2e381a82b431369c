"""Networks in a folder of Python files, found in their source without running it."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_MODULES = frozenset({"Module", "LightningModule"})
_OTHER_FOLDERS = frozenset({"build", "dist", "node_modules", "site-packages", "test", "tests"})


@dataclass(frozen=True)
class FoundNetwork:
    """Subclass of `nn.Module`, defined at the top level of a file."""

    file: Path
    node: ast.ClassDef

    @property
    def name(self) -> str:
        """Return the name of the class."""
        return self.node.name

    @property
    def named(self) -> set[str]:
        """Return the names that the class uses, including its layers' classes."""
        names = set()
        for node in ast.walk(self.node):
            if isinstance(node, ast.Name):
                names.add(node.id)
            elif isinstance(node, ast.Attribute):
                names.add(node.attr)
        return names

    @property
    def takes_one_input(self) -> bool:
        """Return False if `forward` has several arguments, as losses do."""
        for child in self.node.body:
            if isinstance(child, ast.FunctionDef) and child.name == "forward":
                return len(child.args.args) - len(child.args.defaults) == 2  # self, and the input
        return True


def find_networks(folder: Path) -> list[FoundNetwork]:
    """Return a folder's modules with one input. Modules that others use as layers come last."""
    modules = [network for file in _python_files(folder) for network in _networks_in(file)]

    def rank(network: FoundNetwork) -> tuple[bool, int]:
        others = [other for other in modules if other is not network]
        is_layer = any(network.name in other.named for other in others)
        return is_layer, len(network.file.parts)

    return sorted((module for module in modules if module.takes_one_input), key=rank)


def _python_files(folder: Path) -> Iterator[Path]:
    for here, folders, files in os.walk(folder):
        folders[:] = sorted(
            name
            for name in folders
            if name not in _OTHER_FOLDERS
            and not name.startswith(".")
            and not Path(here, name, "pyvenv.cfg").is_file()
        )
        yield from (Path(here, name) for name in sorted(files) if name.endswith(".py"))


def _networks_in(file: Path) -> Iterator[FoundNetwork]:
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # Python 2 or a template, for example
        return
    names = set(_MODULES)
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
            if bases & names:
                names.add(node.name)
                yield FoundNetwork(file, node)
