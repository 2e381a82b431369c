"""Files that scripts, experiments and data sets depend on, and a hash of each."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from photofinish.config.scripts import Script, ScriptPlan
from photofinish.custom.code_text import sha256_of_code
from photofinish.custom.imports import name_of, script_hashes
from photofinish.data.local_files import files_below, state_of_file
from photofinish.files import LARGE_FILE_BYTES, found, project_root, sha256_of_bytes

_MADE = (
    *("data/plan", "data/raw", "data/splits", "data/weights", "results", "report", "metrics"),
    *("plots", "mlruns", "mlflow.db", "dvc.lock"),
)
"""Paths that the pipeline writes. They count only if `deps` names them, or a folder in them."""
_BY_CONTENT = ".py", ".json", ".yaml", ".yml", ".toml", ".ini", ".cfg"
"""Code and settings. A folder may hold millions of other files, too many to read."""


def script_plan(name: str, script: Script) -> ScriptPlan:
    """Return the plan of a script, with a hash of each file that it depends on.

    Small files are hashed by content, and so are the imports of Python files. Large ones, and
    data in folders, are hashed by size and time.
    """
    files = {}
    for dep in script.deps:
        path = found(dep)
        if path.is_dir():
            states = []
            for file in _files_below(path):
                is_code = file.suffix in _BY_CONTENT
                state = _hash(file) if is_code else state_of_file(file.parent, file.name)
                states.append(f"{file.relative_to(path).as_posix()}\0{state}")
            files[dep] = sha256_of_bytes("\n".join(states).encode(errors="surrogateescape"))
        elif path.suffix == ".py":
            files |= script_hashes(path)
        else:
            files[dep] = _hash(path)
    settings = script.model_dump(exclude={"deps"})
    return ScriptPlan(**settings, name=name, files=dict(sorted(files.items())))


def dep_hashes(deps: Iterable[str]) -> dict[str, str]:
    """Return the hash of each file, and of each file in a folder: of all content but comments.

    Files are named by their path from the project's folder, or an absolute one if outside.
    """
    hashes = {}
    for dep in deps:
        path = found(dep)
        for file in _files_below(path) if path.is_dir() else [path]:
            hashes[name_of(file)] = sha256_of_code(file)
    return hashes


def _files_below(folder: Path) -> Iterator[Path]:
    """Yield a folder's files, but hidden, compiled and the pipeline's."""
    here = Path.cwd(), project_root()
    made = tuple(os.path.relpath(root / each, folder) + os.sep for root in here for each in _MADE)
    for name in files_below(folder):
        if (name + os.sep).startswith(made):
            continue
        is_hidden = any(part.startswith((".", "__pycache__")) for part in Path(name).parts)
        if not is_hidden and (folder / name).is_file():  # no broken link
            yield folder / name


def _hash(path: Path) -> str:
    """Return the sha256 of a small file, or of the size and time of a large one.

    The time is another in an experiment's copy, so its script runs again, as after a change.
    """
    if path.stat().st_size <= LARGE_FILE_BYTES:
        return sha256_of_code(path)
    return sha256_of_bytes(state_of_file(path.parent, path.name).encode(errors="surrogateescape"))
