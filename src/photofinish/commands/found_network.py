"""Networks and training scripts in a folder of Python files, found without running them."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from photofinish.config.networks import GIVEN_TO_NETWORKS
from photofinish.custom.reference import CodeReference

_MODULES = frozenset({"Module", "LightningModule"})
_OTHER_FOLDERS = frozenset({"build", "dist", "node_modules", "site-packages", "test", "tests"})
_TRAINERS = frozenset({"fit", "train"})
"""Methods of Lightning's Trainer and of Hugging Face's that train."""
Trees = Mapping[Path, ast.Module]


@dataclass(frozen=True)
class FoundNetwork:
    """Subclass of `nn.Module`, or a function that returns one, at the top level of a file."""

    file: Path
    node: ast.ClassDef | ast.FunctionDef
    takes_one_input: bool

    @property
    def name(self) -> str:
        """Return the name of the class or function."""
        return self.node.name

    @property
    def required(self) -> list[str]:
        """Return the arguments without a default that params.yaml must give."""
        signature = CodeReference(str(self.file), self.name).takes()
        return sorted(signature.required - GIVEN_TO_NETWORKS) if signature else []


def parse_files(folder: Path) -> Trees:
    """Return the syntax tree of each Python file in a folder and below."""
    trees = {}
    for file in _python_files(folder):
        try:
            trees[file] = ast.parse(file.read_bytes())
        except (SyntaxError, ValueError):  # such as Python 2, or a template
            continue
    return trees


def find_networks(trees: Trees) -> list[FoundNetwork]:
    """Return the networks of one input. Parts of others come last, and those that need arguments.

    A file that trains when it is imported has none.
    """
    importable = {file: tree for file, tree in trees.items() if not _trains_on_import(tree)}
    classes = [network for file, tree in importable.items() for network in _classes_in(file, tree)]
    parts = set()
    for network in classes:
        parts |= _names_in(network.node) - {network.name}
    for tree in importable.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):  # ResNet(BasicBlock, ...)
                parts |= {one.id for one in node.args if isinstance(one, ast.Name)}
    takes_one_input = {network.name: network.takes_one_input for network in classes}
    networks = [*classes, *_functions_in(importable, takes_one_input)]

    def rank(network: FoundNetwork) -> tuple[bool, bool, bool, int]:
        is_function = isinstance(network.node, ast.FunctionDef)
        depth = len(network.file.parts)
        return network.name in parts, bool(network.required), is_function, depth

    return sorted((network for network in networks if network.takes_one_input), key=rank)


def find_scripts(trees: Trees) -> list[Path]:
    """Return the files to run for a training: they have its loop, or import a file that has."""
    loops = {file for file, tree in trees.items() if _trains(tree)}
    imported = {file.stem for file in loops if not _runs(trees[file])}
    scripts = [
        file
        for file, tree in trees.items()
        if _runs(tree) and (file in loops or imported & _imports_of(tree))
    ]
    return sorted(scripts, key=lambda file: (len(file.parts), not file.stem.startswith("train")))


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


def _classes_in(file: Path, tree: ast.Module) -> Iterator[FoundNetwork]:
    names = set(_MODULES)
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
            if bases & names:
                names.add(node.name)
                yield FoundNetwork(file, node, _takes_one_input(node))


def _takes_one_input(network: ast.ClassDef) -> bool:
    """Return False if `forward` has several arguments, as losses do."""
    for child in network.body:
        if isinstance(child, ast.FunctionDef) and child.name == "forward":
            return len(child.args.args) - len(child.args.defaults) == 2  # self, and the input
    return True


def _functions_in(trees: Trees, takes_one_input: dict[str, bool]) -> Iterator[FoundNetwork]:
    """Yield the functions that return a network, by a class or by another such function."""
    for file, tree in trees.items():
        built = dict(takes_one_input)
        for node in tree.body:
            if not isinstance(node, ast.FunctionDef):
                continue
            made = [name for value in _returned(node) for name in [_called(value)] if name in built]
            if made:
                built[node.name] = all(built[name] for name in made)
                if not node.name.startswith("_"):
                    yield FoundNetwork(file, node, built[node.name])


def _returned(function: ast.FunctionDef) -> Iterator[ast.expr]:
    """Yield what a function returns. Of a variable, yield what it was assigned."""
    assigned = {
        ast.unparse(target): node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign)
        for target in node.targets
    }
    for node in ast.walk(function):
        if isinstance(node, ast.Return) and node.value:
            yield assigned.get(ast.unparse(node.value), node.value)


def _called(value: ast.expr) -> str:
    """Return the name of what a call calls, without the module before it."""
    return ast.unparse(value.func).rpartition(".")[2] if isinstance(value, ast.Call) else ""


def _names_in(node: ast.AST) -> set[str]:
    names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    return names | {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}


def _trains(tree: ast.AST) -> bool:
    """Return True for a loop with an optimizer's `step`, or a call of a Trainer."""
    calls = _calls_in([tree])
    if calls & _TRAINERS and any(name.endswith("Trainer") for name in calls):
        return True
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.For | ast.While)]
    return "backward" in calls and "step" in _calls_in(loops)


def _calls_in(nodes: Iterable[ast.AST]) -> set[str]:
    each = (node for top in nodes for node in ast.walk(top))
    return {_called(node) for node in each if isinstance(node, ast.Call)}


def _runs(tree: ast.Module) -> bool:
    """Return True for a file that does something when it is run."""
    return _has_main(tree) or any(map(_does_something, tree.body))


def _does_something(node: ast.stmt) -> bool:
    is_call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    return is_call or isinstance(node, ast.For | ast.While | ast.With)


def _has_main(tree: ast.Module) -> bool:
    tests = (node.test for node in tree.body if isinstance(node, ast.If))
    return any("__name__" in ast.unparse(test) for test in tests)


def _trains_on_import(tree: ast.Module) -> bool:
    return _trains(tree) and not _has_main(tree) and _runs(tree)


def _imports_of(tree: ast.Module) -> set[str]:
    """Return the last part of each module that a file imports, and the names."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.name.rpartition(".")[2] for alias in node.names}
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.rpartition(".")[2])
    return found
