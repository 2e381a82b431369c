"""Files that custom code imports, and the packages that it names."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from importlib.machinery import PathFinder
from modulefinder import ModuleFinder
from pathlib import Path
from typing import Any

from photofinish.custom.reference import CodeReference
from photofinish.custom.running import is_custom_file
from photofinish.errors import ConfigError, UserError
from photofinish.files import is_as_recorded, sha256_of_file

PACKAGE = "package "
"""Prefix that marks installed packages among the names of custom code."""
_OURS = Path(__file__).parent.parent


def custom_code_hashes(references: list[CodeReference]) -> dict[str, str]:
    """Return the sha256 of each custom file that runs, and the versions of packages that they name.

    Keys are paths from the project's folder. No file is run.
    """
    files, packages = custom_files(references)
    code = {Path(os.path.relpath(path)).as_posix(): _sha256(path) for path in files.values()}
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
        try:
            finder.import_hook(reference.module_name)
        except SyntaxError as error:
            message = f"{reference.module}, line {error.lineno or 1}: {error.msg}"
            raise ConfigError(message) from None
        module: Any
        for name, module in finder.modules.items():
            if module.__file__ is None:  # a folder without __init__.py
                continue
            path = Path(module.__file__).resolve()
            parts = name.split(".") if module.__path__ else name.split(".")[:-1]
            other = files.setdefault(Path(*parts, path.name), path)
            if other != path:
                raise ConfigError(
                    f"{os.path.relpath(path)} and {os.path.relpath(other)} have the same name, "
                    f"of which Python imports one: rename the other"
                )
        for name in finder.badmodules:
            packages |= _installed(name.partition(".")[0])
    return files, packages


def check_code_unchanged(custom_code: dict[str, str]) -> None:
    """Raise UserError if custom code changed after `plan` read it."""
    for name, sha256 in custom_code.items():
        if not name.startswith(PACKAGE) and not is_as_recorded(Path(name), sha256):
            raise UserError(f"{name} changed after `plan` read it: run `dvc repro` again")


class _Finder(ModuleFinder):
    """ModuleFinder that also finds folders without __init__.py, where Python's raises TypeError."""

    def import_module(self, partname: str, fqname: str, parent: Any) -> Any:
        folders = list(parent.__path__ or ()) if parent else self.path
        spec = PathFinder.find_spec(partname, folders)
        is_folder = spec and not spec.origin and spec.submodule_search_locations
        if fqname in self.modules or not is_folder:
            return super().import_module(partname, fqname, parent)
        module: Any = self.add_module(fqname)
        module.__path__ = list(is_folder)
        if parent:
            setattr(parent, partname, module)
        return module


def _custom_folders() -> Iterator[str]:
    """Yield the folders on Python's path that hold custom code."""
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


_sha256 = cache(sha256_of_file)
