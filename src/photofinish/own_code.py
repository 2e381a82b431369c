"""The user's own code: where a name in params.yaml leads, what it takes, and, in a training or evaluation, itself.

`plan` only reads it. It runs where a network or a loss is built, and what it raises there is shown from its first line
on.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import dropwhile
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from photofinish.errors import UserError
from photofinish.files import own_sweep, project_root
from photofinish.wording import did_you_mean

_REFERENCE = re.compile(
    r"(?P<file>[^:]+\.py)(?P<names>:[^\W\d]\w*)|(?P<module>[^\W\d]\w*(\.[^\W\d]\w*)*):[^\W\d][\w.]*"
)
TIMM = "timm"
"""whose networks are named by what it calls them: timm:resnet18"""
REFERENCE_RULE = "name code as file.py:Name, or package.module:Name"
_TIMM_NETWORK = re.compile(r"^@register_model\ndef (\w+)\(", re.MULTILINE)
_INSTALLED = re.compile(r"/(site|dist)-packages/(?P<package>\w*)")
_Definition = ast.ClassDef | ast.FunctionDef
_EMPTY_BASES = ("object", "Module", "nn.Module", "torch.nn.Module")
"""whose __init__ takes nothing"""


def is_reference(name: object) -> bool:
    """Whether it is meant to name code, well or not."""
    return isinstance(name, str) and (":" in name or name.endswith(".py"))


class Takes(NamedTuple):
    """What a class or a function can be called with, by keyword."""

    names: tuple[str, ...]
    required: frozenset[str]
    """of them, those without a default"""
    any_more: bool
    """whether it takes whatever it is given, as `**kwargs`"""
    is_class: bool


@dataclass(frozen=True)
class Reference:
    """`./net.py:Net`, or `package.module:Name`."""

    module: str
    """the file as it is written, or the module"""
    name: str

    @classmethod
    def of(cls, text: str) -> Reference:
        """As params.yaml has it; raises ValueError where it can't be one."""
        if not _REFERENCE.fullmatch(text):
            raise ValueError(f"this can't be code of yours: {REFERENCE_RULE}")
        module, _, name = text.rpartition(":")
        return cls(module, name)

    @property
    def is_file(self) -> bool:
        """Whether it names a file, and not a module that Python finds."""
        return self.module.endswith(".py")

    @property
    def _path(self) -> Path:
        return (Path.cwd() / Path(self.module).expanduser()).resolve()

    @property
    def file(self) -> Path | None:
        """Where it is written; None for a module that is not there."""
        if self.is_file:
            return self._path if self._path.is_file() else None
        found = _file_of_module(self.module)
        return found and found.resolve()

    @property
    def root(self) -> Path | None:
        """The folder that Python imports the user's file and its neighbours from; None for an installed package."""
        if self.is_file:
            return _root_of(self._path)
        file = self.file
        if file is None or _INSTALLED.search(str(file)) or not is_users_file(str(file)):
            return None
        return file.parents[self.module.count(".") + (file.name == "__init__.py")]

    @property
    def module_name(self) -> str:
        """As Python imports it."""
        if not self.is_file:
            return self.module
        assert self.root
        return ".".join(self._path.relative_to(self.root).with_suffix("").parts)

    def problem(self) -> str | None:
        """Why nothing can be built of it, as far as reading tells."""
        file = self.file
        if file is None and self.is_file and (project_root() / self.module).is_file():
            if own_sweep():
                return f"code starts at the folder of params.yaml: write ../../{self.module.removeprefix('./')}"
            return f"{self.module} is not in the copy that DVC made of what Git knows: `git add {self.module}` first"
        if file is None and self.is_file:
            return f"there is no file {self.module} ({Path.cwd() / self.module}): write it, or correct the path"
        if file is None:
            return f"there is no module {self.module} in this environment: install its package, or correct the name"
        if self.is_file and self.module_name.partition(".")[0] in sys.stdlib_module_names:
            return f"{file.name} has the name of a module of Python's own: rename it"
        if self.is_file and "." in file.stem:
            return f"Python imports no file with a dot in its name, as {file.name}: rename it"
        if self.module == TIMM:
            names = _timm_names(file.parent)
            hint = did_you_mean(self.name, names)
            is_there = self.name.partition(".")[0] in names
            return None if is_there else f"timm has no {self.name};{hint} timm.list_models() has all"
        try:
            top = _parsed(file.read_bytes())
        except SyntaxError as error:
            return f"{self.module}, line {error.lineno or 1}: {error.msg}"
        if self.name.partition(".")[0] in top.names or top.has_more:
            return None
        hint = did_you_mean(self.name, top.names)
        defined = ", ".join(sorted(name for name, node in top.names.items() if node)) or "no class or function"
        return f"{self.module} has no {self.name};{hint} it has {defined}"

    def takes(self) -> Takes | None:
        """What it can be called with; None where reading doesn't tell."""
        file = self.file
        try:
            return _takes(file, self.name) if file else None
        except SyntaxError:  # in another file, that its base is imported from
            return None

    def load(self) -> Any:
        """The class or function itself: from here on the user's code runs."""
        if problem := self.problem():
            raise UserError(f"{self.module}:{self.name}: {problem}")
        if self.root and str(self.root) not in sys.path:
            sys.path.insert(0, str(self.root))  # as if Python ran the file: its neighbours are found first
        with users_code(f"{self.module} can't be imported"):
            module = importlib.import_module(self.module_name)
        if self.root and Path(module.__file__ or "").resolve() != self.file:
            raise UserError(
                f"{self.module} can't be imported: {module.__file__} has the same name, {self.module_name}: rename one"
            )
        try:
            found = attrgetter(self.name)(module)
        except AttributeError:
            raise UserError(f"{self.module} has no {self.name} once it is imported") from None
        if not callable(found):
            raise UserError(f"{self.module}:{self.name} is no class or function, but a {type(found).__name__}")
        return found


def with_what_it_takes(build: Callable[..., Any], offered: Mapping[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """What is given, and of what is offered that which it takes by name."""
    try:
        names = inspect.signature(build).parameters
    except (TypeError, ValueError):  # some that are written in C tell nothing
        return given
    return {name: value for name, value in offered.items() if name in names} | given


@contextmanager
def imports_forgotten() -> Iterator[None]:
    """Afterwards Python knows nothing of the user's files: those of another experiment may have the same names."""
    before, paths = set(sys.modules), [*sys.path]
    try:
        yield
    finally:
        sys.path[:] = paths
        for name in sys.modules.keys() - before:
            file = getattr(sys.modules[name], "__file__", None)
            if file and not _INSTALLED.search(file) and is_users_file(file):
                del sys.modules[name]


@contextmanager
def users_code(what: str) -> Iterator[None]:
    """Around what runs it: whatever it raises ends the stage with `what` and the user's part of the traceback.

    So does sys.exit, as a file's that reads a command line of its own when it is imported.
    """
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"{what}:\n{users_traceback(error)}") from error


def users_traceback(error: BaseException) -> str:
    """From the user's first line on; the error alone where none of the user's lines led to it."""
    frames = dropwhile(lambda frame: not is_users_file(frame.filename), traceback.extract_tb(error.__traceback__))
    return "".join([*traceback.format_list(list(frames)), *traceback.format_exception_only(error)]).rstrip()


def runs_through_users_code(error: BaseException) -> bool:
    """Whether one of the user's lines, or of a package that they name, led to it."""
    return any(is_users_file(frame.filename) for frame in traceback.extract_tb(error.__traceback__))


def is_users_file(filename: str) -> bool:
    """Whether it is neither this package's, nor PyTorch's, nor Python's own."""
    if installed := _INSTALLED.search(filename):
        return installed["package"] != "torch"
    return not filename.startswith((str(Path(__file__).parent), sysconfig.get_path("stdlib"), "<"))


class _TopLevel(NamedTuple):
    """What a file defines, or imports, outside of classes and functions."""

    names: dict[str, _Definition | ast.ImportFrom | None]
    """None for what is assigned, or imported as a module"""
    has_more: bool
    """names that only running it would tell: `from x import *`, `__getattr__`"""


@cache
def _parsed(source: bytes) -> _TopLevel:
    names: dict[str, _Definition | ast.ImportFrom | None] = {}
    has_more = False
    todo: list[ast.AST] = list(ast.parse(source).body)
    while todo:
        node = todo.pop(0)
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names[node.name] = node
            has_more |= node.name == "__getattr__"
        elif isinstance(node, ast.ImportFrom):
            has_more |= any(alias.name == "*" for alias in node.names)
            names.update({alias.asname or alias.name: node for alias in node.names})
        elif isinstance(node, ast.Import):
            names.update({(alias.asname or alias.name).partition(".")[0]: None for alias in node.names})
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names.update(
                {name.id: None for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
            )
        else:  # an `if`, a `try` and what it excepts, a loop: what is in it
            todo += ast.iter_child_nodes(node)
    return _TopLevel(names, has_more)


def _takes(file: Path, name: str, led_here: tuple[tuple[Path, str], ...] = ()) -> Takes | None:
    """Of a class without a constructor, that of its base; of what is imported, from where it is.

    What a decorator makes of it, only running it would tell.
    """
    node = _parsed(file.read_bytes()).names.get(name)
    if (file, name) in led_here or getattr(node, "decorator_list", None):
        return None
    led_here = (*led_here, (file, name))
    if isinstance(node, ast.ImportFrom) and node.module:
        start = file.parents[node.level - 1] if node.level else _root_of(file)
        origin = _below(start, node.module) or (None if node.level else _file_of_module(node.module))
        called = next(alias.name for alias in node.names if (alias.asname or alias.name) == name)
        return _takes(origin, called, led_here) if origin else None
    if isinstance(node, ast.FunctionDef):
        return _of_arguments(node.args, is_class=False)
    if not isinstance(node, ast.ClassDef):
        return None
    for child in node.body:
        if isinstance(child, ast.FunctionDef) and child.name == "__init__":
            return None if child.decorator_list else _of_arguments(child.args, is_class=True)
    bases = [ast.unparse(base) for base in node.bases]
    if all(base in _EMPTY_BASES for base in bases):
        return Takes((), frozenset(), any_more=False, is_class=True)
    return _takes(file, bases[0], led_here) if len(bases) == 1 else None


def _of_arguments(arguments: ast.arguments, *, is_class: bool) -> Takes:
    positional = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    skipped = 1 if is_class else 0  # self
    required = set(positional[skipped : len(positional) - len(arguments.defaults)])
    keywords = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    required |= {argument.arg for argument, default in keywords if default is None}
    names = (*positional[skipped:], *(argument.arg for argument in arguments.kwonlyargs))
    return Takes(names, frozenset(required), any_more=arguments.kwarg is not None, is_class=is_class)


@cache
def _timm_names(package: Path) -> frozenset[str]:
    """Found without importing it, which takes seconds."""
    sources = (file.read_text(encoding="utf-8") for file in package.joinpath("models").glob("*.py"))
    return frozenset(name for source in sources for name in _TIMM_NETWORK.findall(source))


def _file_of_module(name: str) -> Path | None:
    """Found without importing anything, the packages around it included."""
    if own := _below(Path.cwd(), name):
        return own
    top, _, _ = name.partition(".")
    spec = importlib.util.find_spec(top)
    if spec is None or spec.origin is None or not spec.has_location:
        return None
    origin = Path(spec.origin)
    return _below(origin.parent.parent, name) if origin.name == "__init__.py" else origin if name == top else None


def _root_of(file: Path) -> Path:
    """The folder above the packages that the file lies in."""
    return next(folder for folder in file.parents if not (folder / "__init__.py").is_file())


def _below(folder: Path, name: str) -> Path | None:
    place = folder.joinpath(*name.split("."))
    return next((file for file in (place / "__init__.py", place.with_suffix(".py")) if file.is_file()), None)
