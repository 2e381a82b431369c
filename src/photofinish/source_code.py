"""Which source files each stage runs: a stage begins anew when one of them changes, and only then.

A stage runs its script, every module of this package that it imports, directly or through others and whenever it does,
and every one that it starts as a process (`python -m`), but for those that are `NO_PART_OF_A_RESULT`: a word changed
there must not train every network again.

Each stage depends on its own list, which `plan` brings up to date. Listed one by one in dvc.yaml, the same
files made dvc.lock so long that with 15 experiments DVC took 6 s to see that nothing had changed, instead of 1.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from operator import itemgetter
from pathlib import Path

from pydantic import RootModel

import photofinish
from photofinish.errors import MistakeError, UserError
from photofinish.files import is_as_recorded, sha256_of_bytes, sha256_of_file
from photofinish.own_code import Reference

NO_PART_OF_A_RESULT = frozenset({"photofinish.tracking.mlflow_worker", "photofinish.runs.evaluation"})
"""started as processes that write nothing, or nothing but copies of results, into MLflow"""

PACKAGE = "package "
"""in a list of the user's code, what the name of an installed package begins with"""

_PACKAGE = Path(photofinish.__file__).parent
_SOURCES = f"{_PACKAGE.parent}/"
# Each begins with what Python's engine looks for as plain text, which takes a third of the time of ^.
_NEVER_EXECUTED = re.compile(r"\nif TYPE_CHECKING:\n(?:(?:[ \t].*)?\n)+")
_IMPORT = re.compile(
    r"\n[ \t]*(?:from[ \t]+(photofinish[\w.]*)[ \t]+import[ \t]+(\([^)]*\)|.*)|import[ \t]+(photofinish[\w.]*))"
)
_NAME = re.compile(r"(\w+)(?:\s+as\s+\w+)?")
_IMPORTING = ("importlib.import_module", "import_module", "__import__")
_START = re.compile(r"""-m["'],\s*["'](photofinish[\w.]*)["']""")


class StageCode(RootModel[dict[str, str]]):
    """The sha256 of each file, by its path from where Python finds the package, or of the script's folder."""

    @property
    def sha256(self) -> str:
        """The sha256 of the whole list: another one where any file is another."""
        return sha256_of_bytes(self.model_dump_json().encode())


def stage_code(script: Path) -> StageCode:
    """The code that a stage runs: its script, and all that it runs of this package."""
    names = {str(script): f"{script.parent.name}/{script.name}"}
    todo = [str(script)]  # as text: thousands of Paths would take longer
    while todo:
        for path in _files_run_by(todo.pop()) - names.keys():
            names[path] = path.removeprefix(_SOURCES)
            todo.append(path)
    return StageCode({name: _sha256(path) for path, name in sorted(names.items(), key=itemgetter(1))})


def code_of_users(references: list[Reference]) -> dict[str, str]:
    """The sha256 of each of the user's files that run with these, by its path from the project's folder, and the
    version of each installed package that those name. Nothing of it is run."""
    files, packages = users_files(references)
    found = {Path(os.path.relpath(path)).as_posix(): _sha256(str(path)) for path in files.values()}
    return dict(sorted((found | {f"{PACKAGE}{name}": version for name, version in packages.items()}).items()))


def users_files(references: list[Reference]) -> tuple[dict[Path, Path], dict[str, str]]:
    """The user's files that run with these, by their paths from the folders that Python imports them from, and the
    versions of the installed packages that they name."""
    files: dict[Path, Path] = {}
    packages: dict[str, str] = {}
    todo, elsewhere = [*references], set[str]()
    while todo:
        reference = todo.pop()
        root, file = reference.root, reference.file
        if root is None or file is None:
            packages |= dict(filter(None, [_installed(reference.module.partition(".")[0])]))
            continue
        todo_here = [str(file), *_files_of(reference.module_name, str(root))]
        while todo_here:
            path = Path(todo_here.pop())
            place = path.relative_to(root)
            if (other := files.get(place)) == path:
                continue
            if other:
                raise MistakeError(
                    f"{os.path.relpath(path)} and {os.path.relpath(other)} have the same name, of which Python imports "
                    f"one: rename the other"
                )
            files[place] = path
            for name in _modules_named_in(path, root):
                here = _files_of(name, str(root))
                todo_here += here
                if not here and name not in elsewhere:  # but on PYTHONPATH, or installed
                    elsewhere.add(name)
                    todo.append(Reference(name, ""))
    return files, packages


def refuse_changed_code(own_code: dict[str, str]) -> None:
    """What the user wrote must be what `plan` saw, or a result would be told to be of other code than it is of."""
    for name, expected in own_code.items():
        if not name.startswith(PACKAGE) and not is_as_recorded(Path(name), expected):
            raise UserError(f"{name} is not what it was when `plan` read it: run `dvc repro` again")


def _modules_named_in(path: Path, root: Path) -> Iterator[str]:
    """Each by its full name; for `from a import b`, both a and a.b, for b may be a module."""
    around = list(path.relative_to(root).with_suffix("").parts[:-1])
    try:
        tree = ast.parse(path.read_bytes(), filename=str(path))
    except SyntaxError as error:
        raise MistakeError(f"{os.path.relpath(path)}, line {error.lineno or 1}: {error.msg}") from None
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = around[: len(around) - node.level + 1] if node.level else []
            module = ".".join([*parents, *([node.module] if node.module else [])])
            yield from filter(None, (module, *(f"{module}.{alias.name}".lstrip(".") for alias in node.names)))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in _IMPORTING:
            yield from (str(each.value) for each in node.args[:1] if isinstance(each, ast.Constant))


@cache
def _installed(module: str) -> tuple[str, str] | None:
    """Name and version of the package that a module is installed with; None for what comes with Python."""
    if module in sys.stdlib_module_names or module == _PACKAGE.name:
        return None
    try:
        return module, metadata.version(module)
    except metadata.PackageNotFoundError:  # called otherwise, as PIL is pillow; looking all of them up takes longer
        names = metadata.packages_distributions().get(module)
        return (names[0], metadata.version(names[0])) if names else None


@cache
def _sha256(path: str) -> str:
    return sha256_of_file(Path(path))


@cache
def _files_run_by(path: str) -> set[str]:
    """Looked up once, for the stages share most of them; by spelling, in a tenth of the time of Python's own parser."""
    source = _NEVER_EXECUTED.sub("\n", f"\n{Path(path).read_text(encoding='utf-8')}")
    files: set[str] = set()
    for module, names, plain in _IMPORT.findall(source):
        files.update(_files_of(module or plain), *(_files_of(f"{module}.{name}") for name in _NAME.findall(names)))
    for module in _START.findall(source):
        if module not in NO_PART_OF_A_RESULT:
            files.update(_files_of(module), _files_of(f"{module}.__main__"))
    return files


@cache
def _files_of(name: str, root: str = str(_PACKAGE.parent)) -> tuple[str, ...]:
    """The module's file and the packages around it, which Python runs first."""
    around, _, _ = name.rpartition(".")
    place = f"{root}/{name.replace('.', '/')}"
    own = tuple(file for file in (f"{place}/__init__.py", f"{place}.py") if os.path.isfile(file))  # noqa: PTH113
    return (_files_of(around, root) if around else ()) + own
