"""Source files that each stage runs and reads: it runs again when one of them changes.

Each stage depends on one file, written by `plan`, that lists them. If dvc.yaml listed them, DVC
would take 6 s instead of 1 s to see that nothing changed in 15 experiments.
"""

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

from pydantic import RootModel

from photofinish.custom_code import Reference, is_custom_file
from photofinish.errors import ConfigError, UserError
from photofinish.files import is_as_recorded, sha256_of_bytes, sha256_of_file

_EVERY_STAGE = (
    *("errors", "files", "custom_code", "config"),
    *("processes", "source_code", "wording"),
)
_NETWORKS = (
    "data/__init__",
    "data/packed",
    "data/ragged",
    "machine",
    "models",
    "nested",
    "results",
)
_LIVE_DATA = (
    *("data/images", "data/live", "data/local_files", "data/local_images", "data/samples"),
    *("data/sources", "data/torchvision_source", "locks"),
)
"""Modules that read data sets, which training and evaluation may do in each epoch."""
_INFERENCE = (
    "training/__init__",
    "training/batches",
    "training/custom_step",
    "training/loading",
    "training/losses",
    "training/parts",
    "training/torch_device",
)
CODE_OF_STAGES = {
    "plan": ("data", "machine", "plan", "script_deps"),
    "download": ("data", "locks", "nested"),
    "split": ("data", "locks", "nested"),
    "download_weights": ("models",),
    "train": (*_NETWORKS, *_LIVE_DATA, "profiling", "runs", "training"),
    "script": (
        *("data/__init__", "locks", "machine", "models/__init__", "models/custom"),
        *("models/registry", "nested", "profiling/__init__", "profiling/counting"),
        *("profiling/script_step", "results", "scripts"),
    ),
    "evaluate": (
        *_NETWORKS,
        *_LIVE_DATA,
        *_INFERENCE,
        "evaluation",
    ),
    "compare": (
        *("comparing", "data/__init__", "machine", "nested"),
        *("reporting", "results", "tracking"),
    ),
    "remote": ("remote", "machine"),
}
"""Packages and modules of photofinish that each stage runs. Tests compare them with the imports.

Training also imports `tracking`, which copies results into MLflow and does not influence them.
"""
_DATA_OF_STAGES = {"compare": ("config/tables", "reporting/templates")}
"""Folders whose files a stage reads."""
PACKAGE = "package "
"""Prefix of the names of installed packages in a list of custom code."""
_HERE = Path(__file__).parent


class StageCode(RootModel[dict[str, str]]):
    """SHA-256 of each source file of a stage, by its path."""

    @property
    def sha256(self) -> str:
        """Return the sha256 of the whole list."""
        return sha256_of_bytes(self.model_dump_json().encode())


def stage_code(script: Path) -> StageCode:
    """Return the files that a stage's script runs: the script, and those of photofinish."""
    name = f"{script.parent.name}/{script.name}"
    return StageCode({**our_code(script.stem).root, name: _sha256(script)})


def our_code(stage: str) -> StageCode:
    """Return the files of photofinish that a stage runs."""
    files = [_HERE / "__init__.py"]
    for name in (*_EVERY_STAGE, *CODE_OF_STAGES.get(stage, ())):
        path = _HERE / name
        files += sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]
    for name in _DATA_OF_STAGES.get(stage, ()):
        files += sorted((_HERE / name).iterdir())
    names = {path.relative_to(_HERE.parent).as_posix(): path for path in files}
    return StageCode({name: _sha256(path) for name, path in names.items()})


def custom_code_hashes(references: list[Reference]) -> dict[str, str]:
    """Return the sha256 of each custom file that runs, and the versions of packages that they name.

    Files are named by their path from the project's folder. None of them is run.
    """
    files, packages = custom_files(references)
    code = {Path(os.path.relpath(path)).as_posix(): _sha256(path) for path in files.values()}
    code |= {f"{PACKAGE}{name}": version for name, version in packages.items()}
    return dict(sorted(code.items()))


def custom_files(references: list[Reference]) -> tuple[dict[Path, Path], dict[str, str]]:
    """Return the custom files that run, and the versions of packages that they name.

    The files' keys are their paths below the folder that Python imports them from.
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
        if Path(folder) != _HERE.parent and is_custom_file(f"{folder}/") and Path(folder).is_dir():
            yield folder


@cache
def _installed(module: str) -> dict[str, str]:
    """Return the package of a module and its version, or nothing for Python's own modules."""
    if module in sys.stdlib_module_names or module == _HERE.name:
        return {}
    if importlib.util.find_spec(module) is None:
        return {}
    try:
        return {module: metadata.version(module)}
    except metadata.PackageNotFoundError:  # PIL is part of pillow, for example
        names = metadata.packages_distributions().get(module)
        return {names[0]: metadata.version(names[0])} if names else {}


_sha256 = cache(sha256_of_file)
