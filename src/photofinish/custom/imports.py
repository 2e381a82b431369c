"""Files that custom code imports, and the packages that it names."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import metadata
from importlib.machinery import PathFinder
from modulefinder import ModuleFinder
from pathlib import Path
from typing import Any

from photofinish.custom.code_text import sha256_of_code
from photofinish.custom.reference import CodeReference
from photofinish.custom.running import is_custom_file
from photofinish.errors import ConfigError, UserError
from photofinish.files import found, project_root

PACKAGE = "package "
"""Prefix that marks installed packages among the names of custom code."""
_OURS = Path(__file__).parent.parent


def custom_code_hashes(references: list[CodeReference]) -> dict[str, str]:
    files, packages = custom_files(references)
    return _hashes(files.values(), packages)


def script_hashes(script: Path) -> dict[str, str]:
    """Return the hashes of a script and its imports. Python runs it by path or by name (`-m`)."""
    reference = CodeReference(str(script), "")
    folder = Path.cwd() if script.resolve().is_relative_to(Path.cwd()) else reference.root
    assert folder
    name = script.resolve().relative_to(folder).with_suffix("").as_posix()
    finder = _Finder([*map(str, (script.parent, folder, reference.root)), *_custom_folders()])
    with _syntax_errors(str(script)), suppress(ImportError):  # `from . import` without a package
        try:
            finder.import_hook(name.replace("/", "."))  # relative imports need the name
        except ImportError:  # no name of a module, such as v1.2, or a package's, such as torch/
            finder.run_script(str(script))
    return _hashes((path for _, path in finder.files()), finder.packages())


def name_of(file: Path) -> str:
    """Return a file's path from the project, or its absolute path if it is in another Git.

    Clones, and copies by `dvc exp run --temp`, are other folders, and their names are the same.
    """
    path = Path(os.path.abspath(file))  # noqa: PTH100  # a link counts by its own name
    for here in (Path.cwd(), project_root()):
        top = next((each for each in (here, *here.parents) if (each / ".git").exists()), here)
        if path.is_relative_to(top):
            return Path(os.path.relpath(path, here)).as_posix()
    return path.as_posix()


def _hashes(files: Iterable[Path], packages: dict[str, str]) -> dict[str, str]:
    code = {name_of(path): sha256_of_code(path) for path in files}
    code |= {f"{PACKAGE}{name}": version for name, version in packages.items()}
    return dict(sorted(code.items()))


def custom_files(references: list[CodeReference]) -> tuple[dict[Path, Path], dict[str, str]]:
    """Return the custom files that run, and the versions of packages that they name.

    Keys are paths below the folder that Python imports the files from.
    """
    files: dict[Path, Path] = {}
    packages: dict[str, str] = {}
    for reference in references:
        root = reference.root
        if root is None:
            packages |= _installed(reference.module.partition(".")[0])
            continue
        finder = _Finder([str(root), *_custom_folders()])
        with _syntax_errors(reference.module):
            finder.import_hook(reference.module_name)
        for place, path in finder.files():
            other = files.setdefault(place, path)
            if other != path:
                raise ConfigError(
                    f"{os.path.relpath(path)} and {os.path.relpath(other)} have the same name, "
                    f"and Python imports only one of them: rename the other"
                )
        packages |= finder.packages()
    return files, packages


@contextmanager
def _syntax_errors(file: str) -> Iterator[None]:
    try:
        yield
    except SyntaxError as error:
        raise ConfigError(f"{file}, line {error.lineno or 1}: {error.msg}") from None


def check_code_unchanged(custom_code: dict[str, str]) -> None:
    """Raise UserError if custom code changed after `plan` read it."""
    for name, sha256 in custom_code.items():
        file = found(name)
        is_same = file.is_file() and sha256_of_code(file) == sha256
        if not (is_same or name.startswith(PACKAGE)):
            raise UserError(f"{name} changed after `plan` read it: run `dvc repro` again")


class _Finder(ModuleFinder):
    """ModuleFinder that also finds folders without __init__.py, where Python's raises TypeError."""

    def import_module(self, partname: str, fqname: str, parent: Any) -> Any:
        folders = list(parent.__path__ or ()) if parent else self.path
        spec = PathFinder.find_spec(partname, folders)
        is_folder = spec and not spec.origin and spec.submodule_search_locations
        if is_folder and not parent and _installed(partname):
            return None  # Python prefers the package to `wandb/` or `datasets/` with data
        if fqname in self.modules or not is_folder:
            return super().import_module(partname, fqname, parent)
        module: Any = self.add_module(fqname)
        module.__path__ = list(is_folder)
        if parent:
            setattr(parent, partname, module)
        return module

    def files(self) -> Iterator[tuple[Path, Path]]:
        """Yield each file, after its path below the folder that Python imports it from."""
        module: Any
        for name, module in self.modules.items():
            if module.__file__ is None:  # a folder without __init__.py
                continue
            path = Path(module.__file__).resolve()
            parts = name.split(".") if module.__path__ else name.split(".")[:-1]
            yield Path(*parts, path.name), path

    def packages(self) -> dict[str, str]:
        versions: dict[str, str] = {}
        for name in self.badmodules:
            versions |= _installed(name.partition(".")[0])
        return versions


def _custom_folders() -> Iterator[str]:
    for folder in sys.path:
        if Path(folder) != _OURS.parent and is_custom_file(f"{folder}/") and Path(folder).is_dir():
            yield folder


@cache
def _installed(module: str) -> dict[str, str]:
    """Return the package of a module and its version, or nothing for Python's own modules."""
    if module in sys.stdlib_module_names or module == _OURS.name:
        return {}
    if importlib.util.find_spec(module) is None:
        return {}
    try:
        return {module: metadata.version(module)}
    except metadata.PackageNotFoundError:  # PIL is part of pillow, for example
        names = metadata.packages_distributions().get(module)
        return {names[0]: metadata.version(names[0])} if names else {}
