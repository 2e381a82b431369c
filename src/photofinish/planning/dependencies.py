"""Files that scripts, experiments and data sets depend on, and a hash of each."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from photofinish.config.scripts import Script, ScriptPlan
from photofinish.custom.imports import script_hashes
from photofinish.data.local_files import files_below, state_of_file
from photofinish.files import in_project, project_root, sha256_of_bytes, sha256_of_file

_MADE = ("data/plan", "data/raw", "data/splits", "data/weights")
"""Folders that the pipeline writes. They count only if `deps` names them, or a folder in them."""


def script_plan(name: str, script: Script) -> ScriptPlan:
    """Return the plan of a script, with a hash of each file that it depends on.

    Files are hashed by content, and so are the imports of Python files. In folders, only Python
    files are hashed by content, and other files by size and time.
    """
    files = {}
    for dep in script.deps:
        path = in_project(dep)
        if path.suffix == ".py" and Path(dep).is_file():
            path = Path(dep)  # a copy by `dvc exp run --temp` runs its own file
        if path.is_dir():
            states = "\n".join(_state(path, file) for file in _files_below(path))
            files[dep] = sha256_of_bytes(states.encode(errors="surrogateescape"))
        elif path.suffix == ".py":
            files |= script_hashes(path)
        else:
            files[dep] = sha256_of_file(path)
    return ScriptPlan(
        name=name,
        command=script.command,
        metrics=script.metrics,
        epochs=script.epochs,
        time_limit=script.time_limit,
        files=dict(sorted(files.items())),
    )


def dep_hashes(deps: Iterable[str]) -> dict[str, str]:
    """Return the sha256 of the content of each file, and of each file in a folder.

    Files are named by their path from the project's folder.
    """
    hashes = {}
    for dep in deps:
        path = Path(dep) if Path(dep).exists() else in_project(dep)
        for file in _files_below(path) if path.is_dir() else [path]:
            hashes[Path(os.path.relpath(file)).as_posix()] = sha256_of_file(file)
    return hashes


def _files_below(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder, without hidden, compiled and the pipeline's own files."""
    here = Path.cwd(), project_root()
    made = tuple(os.path.relpath(root / each, folder) + os.sep for root in here for each in _MADE)
    for name in files_below(folder):
        if name.startswith(made):
            continue
        is_hidden = any(part.startswith((".", "__pycache__")) for part in Path(name).parts)
        if not is_hidden and (folder / name).is_file():  # no broken link
            yield folder / name


def _state(folder: Path, path: Path) -> str:
    name = path.relative_to(folder).as_posix()
    if path.suffix == ".py":
        return f"{name}\0{sha256_of_file(path)}"
    return state_of_file(folder, name)
