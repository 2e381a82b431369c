"""References to custom code in params.yaml: `./net.py:Net` or `package.module:Name`.

`plan` reads the code without running it.
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
from dataclasses import dataclass
from functools import cache
from importlib.machinery import PathFinder
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from photofinish.custom.running import is_custom_file, run_custom_code
from photofinish.errors import UserError
from photofinish.files import project_root
from photofinish.wording import did_you_mean

TIMM = "timm"
"""Prefix of timm's networks, as in timm:resnet18."""
_REFERENCE = re.compile(r"[^:]+\.py:[^\W\d]\w*|[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d][\w.]*")
_EMPTY_BASES = ("object", "Module", "nn.Module", "torch.nn.Module")


def is_reference(name: object) -> bool:
    """Return True if the name looks like a code reference, valid or not."""
    return isinstance(name, str) and (":" in name or name.endswith(".py"))


class Signature(NamedTuple):
    """Keyword arguments of a class or function."""

    names: tuple[str, ...]
    required: frozenset[str]
    """Names without a default."""
    any_more: bool
    """True if it takes `**kwargs`."""
    is_class: bool


@dataclass(frozen=True)
class CodeReference:
    """Code reference: `./net.py:Net` or `package.module:Name`."""

    module: str
    """File as params.yaml names it, or module."""
    name: str

    @classmethod
    def of(cls, text: str) -> CodeReference:
        """Parse a reference. Raise ValueError if the text is not a valid reference."""
        if not _REFERENCE.fullmatch(text):
            raise ValueError("name code as file.py:Name, or package.module:Name")
        module, _, name = text.rpartition(":")
        return cls(module, name)

    @property
    def is_file(self) -> bool:
        return self.module.endswith(".py")

    @property
    def file(self) -> Path | None:
        """Return the file that defines the code, or None if the file does not exist."""
        if not self.is_file:
            return file_of_module(self.module)
        path = Path(self.module).expanduser().resolve()
        return path if path.is_file() else None

    @property
    def root(self) -> Path | None:
        """Return the folder to import the custom file from, or None for an installed package."""
        file = self.file
        if file is None or not (self.is_file or is_custom_file(str(file))):
            return None
        return next(folder for folder in file.parents if not (folder / "__init__.py").is_file())

    @property
    def module_name(self) -> str:
        if not self.is_file:
            return self.module
        assert self.file
        assert self.root
        return ".".join(self.file.relative_to(self.root).with_suffix("").parts)

    def problem(self) -> str | None:
        """Return why the code can't be used, as far as its source shows, or None."""
        file = self.file
        if file is None and self.is_file:
            if not (project_root() / self.module).is_file():
                path = Path.cwd() / self.module
                return f"there is no file {self.module} ({path}): write it, or correct the path"
            return f"DVC's copy has only files that Git knows: `git add {self.module}` first"
        if file is None:
            return f"there is no module {self.module}: install its package, or correct the name"
        if self.module == TIMM:
            return None
        try:
            names = _defined_in(file)
        except SyntaxError as error:
            return f"{self.module}, line {error.lineno or 1}: {error.msg}"
        if {self.name.partition(".")[0], "*", "__getattr__"} & names.keys():
            return None
        code = [name for name, node in names.items() if isinstance(node, _DEFINITIONS)]
        hint = did_you_mean(self.name, names)
        return f"{self.module} has no {self.name};{hint} it defines {', '.join(sorted(code))}"

    def takes(self) -> Signature | None:
        """Return the code's signature, or None if it can't be known without running the file."""
        node = _definition(self.file, self.module, self.name)
        if not isinstance(node, _DEFINITIONS) or node.decorator_list:
            return None
        if isinstance(node, ast.FunctionDef):
            return _signature(node.args, is_class=False)
        for child in node.body:
            if isinstance(child, ast.FunctionDef) and child.name == "__init__":
                return None if child.decorator_list else _signature(child.args, is_class=True)
        if all(ast.unparse(base) in _EMPTY_BASES for base in node.bases):
            return Signature((), frozenset(), any_more=False, is_class=True)
        return None

    def load(self) -> Any:
        """Import the class or function. This runs custom code."""
        from unittest.mock import patch  # slow, and `plan` needs none

        if problem := self.problem():
            raise UserError(f"{self.module}:{self.name}: {problem}")
        if self.root and str(self.root) not in sys.path:
            sys.path.insert(0, str(self.root))
        failing = f"{self.module}:{self.name} can't be imported"
        with run_custom_code(failing), patch.object(sys, "argv", [str(self.file)]):
            module = importlib.import_module(self.module_name)
            if self.root and Path(module.__file__ or "").resolve() != self.file:
                raise UserError(
                    f"can't import {self.module}: {module.__file__} has the same name. Rename one"
                )
            return attrgetter(self.name)(module)


_DEFINITIONS = ast.ClassDef | ast.FunctionDef


@cache
def _defined_in(file: Path) -> dict[str, ast.AST]:
    """Return the names that a file defines, assigns or imports outside of classes and functions."""
    names: dict[str, ast.AST] = {}
    nodes: list[ast.AST] = list(ast.parse(file.read_bytes()).body)
    while nodes:
        node = nodes.pop(0)
        if isinstance(node, _DEFINITIONS):
            names[node.name] = node
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                names[alias.asname or alias.name.partition(".")[0]] = node
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names[node.id] = node
        else:  # an `if` or a `try`, for example
            nodes += ast.iter_child_nodes(node)
    return names


def names_in_module(module: str) -> list[str]:
    """Return `__all__` or the public names of a module, without importing the module."""
    file = file_of_module(module)
    if file is None:
        return []
    for node in ast.parse(file.read_bytes()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]
    return [name for name in _defined_in(file) if not name.startswith("_")]


def _definition(file: Path | None, module: str, name: str) -> ast.AST | None:
    """Return the definition of a name, following imports into other modules."""
    names = _defined_in(file) if file else {}
    node = names.get(name) or names.get("*")
    if not isinstance(node, ast.ImportFrom) or file is None or module.endswith(".py"):
        return node
    source = node.module or ""
    if node.level:
        package = module if file.name == "__init__.py" else module.rpartition(".")[0]
        parents = package.split(".")
        source = ".".join([*parents[: len(parents) - node.level + 1], *source.split(".")])
    originals = {alias.asname or alias.name: alias.name for alias in node.names}
    return _definition(file_of_module(source), source, originals.get(name, name))


def _signature(arguments: ast.arguments, *, is_class: bool) -> Signature:
    positional = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    required = set(positional[: len(positional) - len(arguments.defaults)])
    keyword_only = [argument.arg for argument in arguments.kwonlyargs]
    for name, default in zip(keyword_only, arguments.kw_defaults, strict=True):
        if default is None:
            required.add(name)
    names = [*positional, *keyword_only]
    if is_class:
        required.discard(names.pop(0))  # self
    any_more = arguments.kwarg is not None
    return Signature(tuple(names), frozenset(required), any_more, is_class)


def file_of_module(name: str) -> Path | None:
    """Return the file of a module without importing its parent packages."""
    top, *rest = name.split(".")
    spec = PathFinder.find_spec(top, [str(Path.cwd())]) or find_spec(top)
    for part in rest:
        folders = spec.submodule_search_locations if spec else None
        spec = PathFinder.find_spec(part, list(folders or []))
    if spec is None or not spec.has_location or spec.origin is None:
        return None
    return Path(spec.origin).resolve()
