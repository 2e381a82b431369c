"""Custom code that params.yaml names.

`plan` reads it without running it. Training and evaluation run it. Their errors show its traceback from the user's
first line on.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import os
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

from photofinish.errors import TerminatedError, UserError
from photofinish.files import own_sweep, project_root
from photofinish.wording import did_you_mean

_REFERENCE = re.compile(r"[^:]+\.py:[^\W\d]\w*|[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d][\w.]*")
TIMM = "timm"
"""Its networks are named as timm does: timm:resnet18."""
_TIMM_NETWORK = re.compile(r"^@register_model\ndef (\w+)\(", re.MULTILINE)
_INSTALLED = re.compile(r"/(site|dist)-packages/(?P<package>\w*)")
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
class Reference:
    """Code reference: `./net.py:Net` or `package.module:Name`."""

    module: str
    """File as it is written, or module."""
    name: str

    @classmethod
    def of(cls, text: str) -> Reference:
        """Parse a reference. Raise ValueError if it is none."""
        if not _REFERENCE.fullmatch(text):
            raise ValueError("this can't be code of yours: name code as file.py:Name, or package.module:Name")
        module, _, name = text.rpartition(":")
        return cls(module, name)

    @property
    def is_file(self) -> bool:
        """Return True if it names a file, False if it names a module."""
        return self.module.endswith(".py")

    @property
    def file(self) -> Path | None:
        """Return the file that defines it, or None if there is none."""
        if not self.is_file:
            found = _file_of_module(self.module)
            return found and found.resolve()
        path = Path(self.module).expanduser().resolve()
        return path if path.is_file() else None

    @property
    def root(self) -> Path | None:
        """Return the folder to import the custom file from, or None for an installed package."""
        file = self.file
        if file is None:
            return None
        if self.is_file:
            return next(folder for folder in file.parents if not (folder / "__init__.py").is_file())
        if not is_custom_file(str(file)):
            return None
        return file.parents[self.module.count(".") + (file.name == "__init__.py")]

    @property
    def module_name(self) -> str:
        """Return the name that Python imports it by."""
        if not self.is_file:
            return self.module
        assert self.file
        assert self.root
        return ".".join(self.file.relative_to(self.root).with_suffix("").parts)

    def problem(self) -> str | None:
        """Return why nothing can be built of it, as far as its source shows."""
        file = self.file
        if file is None and self.is_file:
            if (project_root() / self.module).is_file() and own_sweep():
                return f"paths start at the folder of params.yaml: write ../../{self.module.removeprefix('./')}"
            if (project_root() / self.module).is_file():
                return f"DVC's copy of the project has only what Git knows: `git add {self.module}` first"
            return f"there is no file {self.module} ({Path.cwd() / self.module}): write it, or correct the path"
        if file is None:
            return f"there is no module {self.module} in this environment: install its package, or correct the name"
        if self.is_file and self.module_name.partition(".")[0] in sys.stdlib_module_names:
            return f"{file.name} has the name of a module of Python's own: rename it"
        if self.module == TIMM:
            names = _timm_names(file.parent)
            hint = did_you_mean(self.name, names)
            return None if self.name in names else f"timm has no {self.name};{hint} timm.list_models() has all"
        try:
            defined = _defined_in(file)
        except SyntaxError as error:
            return f"{self.module}, line {error.lineno or 1}: {error.msg}"
        if self.name.partition(".")[0] in defined or "*" in defined or "__getattr__" in defined:
            return None
        hint = did_you_mean(self.name, defined)
        there = sorted(name for name, node in defined.items() if isinstance(node, ast.ClassDef | ast.FunctionDef))
        return f"{self.module} has no {self.name};{hint} it defines {', '.join(there) or 'no class or function'}"

    def takes(self) -> Signature | None:
        """Return what it can be called with, or None if only running the file would show that."""
        file = self.file
        node = _defined_in(file).get(self.name) if file else None
        if not isinstance(node, ast.ClassDef | ast.FunctionDef) or node.decorator_list:
            return None
        if isinstance(node, ast.FunctionDef):
            return _takes(node.args, is_class=False)
        for child in node.body:
            if isinstance(child, ast.FunctionDef) and child.name == "__init__" and not child.decorator_list:
                return _takes(child.args, is_class=True)
        if all(ast.unparse(base) in _EMPTY_BASES for base in node.bases):
            return Signature((), frozenset(), any_more=False, is_class=True)
        return None

    def load(self) -> Any:
        """Import the class or function. Custom code runs from here on."""
        if problem := self.problem():
            raise UserError(f"{self.module}:{self.name}: {problem}")
        if self.root and str(self.root) not in sys.path:
            sys.path.insert(0, str(self.root))
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
    """Return `given`, plus those of `offered` that `build` accepts."""
    try:
        names = inspect.signature(build).parameters
    except (TypeError, ValueError):  # some functions written in C have no signature
        return given
    return {name: value for name, value in offered.items() if name in names} | given


@contextmanager
def imports_forgotten() -> Iterator[None]:
    """Forget custom modules that are imported meanwhile: other experiments may have files of the same names."""
    before, paths = set(sys.modules), [*sys.path]
    try:
        yield
    finally:
        sys.path[:] = paths
        for name in sys.modules.keys() - before:
            file = getattr(sys.modules[name], "__file__", None)
            if file and is_custom_file(file):
                del sys.modules[name]


@contextmanager
def users_code(what: str) -> Iterator[None]:
    """Run custom code. What it raises becomes a UserError with `what` and its traceback.

    Afterwards the working directory is what it was, since results have relative paths.
    """
    folder = os.getcwd()  # noqa: PTH109  # runs for each item of a custom transform
    try:
        yield
    except (UserError, KeyboardInterrupt, TerminatedError):
        raise
    except BaseException as error:  # also sys.exit in a file that reads a command line when it is imported
        raise UserError(f"{what}:\n{user_traceback(error)}") from error
    finally:
        os.chdir(folder)
    if sys.stdout.closed:
        sys.stdout = sys.stderr
        raise UserError(f"{what}: it closed sys.stdout, which this stage prints to")


def user_traceback(error: BaseException) -> str:
    """Return the traceback from the user's first line on, or only the error if it has none."""
    frames = dropwhile(lambda frame: not is_user_file(frame.filename), traceback.extract_tb(error.__traceback__))
    return "".join([*traceback.format_list(list(frames)), *traceback.format_exception_only(error)]).rstrip()


def runs_through_users_code(error: BaseException) -> bool:
    """Return True if the traceback has a line of the user, or of a package that they name."""
    return any(is_user_file(frame.filename) for frame in traceback.extract_tb(error.__traceback__))


def is_user_file(filename: str) -> bool:
    """Return True if the file belongs neither to photofinish, nor to PyTorch, nor to Python."""
    if installed := _INSTALLED.search(filename):
        return installed["package"] != "torch"
    return not filename.startswith((str(Path(__file__).parent), sysconfig.get_path("stdlib"), "<"))


def is_custom_file(filename: str) -> bool:
    """Return True if the file is custom code, and not part of an installed package."""
    return is_user_file(filename) and not _INSTALLED.search(filename)


@cache
def _defined_in(file: Path) -> dict[str, ast.AST]:
    """Return what a file defines, assigns or imports outside of classes and functions, by name."""
    found: dict[str, ast.AST] = {}
    todo: list[ast.AST] = list(ast.parse(file.read_bytes()).body)
    while todo:
        node = todo.pop(0)
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                found[alias.asname or alias.name.partition(".")[0]] = node
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found[node.id] = node
        else:  # an `if` or a `try`, for example
            todo += ast.iter_child_nodes(node)
    return found


def _takes(arguments: ast.arguments, *, is_class: bool) -> Signature:
    positional = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    skipped = 1 if is_class else 0  # self
    required = set(positional[skipped : len(positional) - len(arguments.defaults)])
    keywords = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    required |= {argument.arg for argument, default in keywords if default is None}
    names = (*positional[skipped:], *(argument.arg for argument in arguments.kwonlyargs))
    return Signature(names, frozenset(required), any_more=arguments.kwarg is not None, is_class=is_class)


@cache
def _timm_names(package: Path) -> frozenset[str]:
    """Return the networks of timm without importing it, which takes seconds."""
    sources = (file.read_text(encoding="utf-8") for file in package.joinpath("models").glob("*.py"))
    return frozenset(name for source in sources for name in _TIMM_NETWORK.findall(source))


def _file_of_module(name: str) -> Path | None:
    """Return the file of a module without importing the packages around it."""
    top, _, _ = name.partition(".")
    folders = [Path.cwd()]
    spec = importlib.util.find_spec(top)
    if spec is not None and spec.origin is not None and spec.has_location:
        origin = Path(spec.origin)
        folders.append(origin.parent.parent if origin.name == "__init__.py" else origin.parent)
    for folder in folders:
        place = folder.joinpath(*name.split("."))
        for file in (place / "__init__.py", place.with_suffix(".py")):
            if file.is_file():
                return file
    return None
