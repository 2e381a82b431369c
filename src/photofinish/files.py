"""Atomic writes, canonical JSON and CSV, sha256, and the project's folders."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from photofinish.errors import UserError

OWN_FOLDER = Path("photofinish")
"""Folder of the pipeline in a repository that has its own dvc.yaml or stages, for example."""
LARGE_FILE_BYTES = 10**6
"""Size above which a file counts as data, by hand: it is known by its size and time."""


def sha256_of_bytes(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def sha256_of_file(path: Path) -> str:
    """Return the sha256 of a file without reading all of it into memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_as_recorded(path: Path, sha256: str | None) -> bool:
    """Return True if the file exists and has this sha256."""
    return path.is_file() and sha256_of_file(path) == sha256


def write_bytes_atomically(path: Path, data: bytes) -> None:
    """Write and sync a file. If that fails, the old content stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def write_text_atomically(path: Path, text: str) -> None:
    write_bytes_atomically(path, text.encode("utf-8"))


def write_json_atomically(path: Path, value: Any) -> None:
    write_text_atomically(path, to_json(value))


def to_json(value: Any) -> str:
    """Serialize to canonical JSON, so that equal values give identical bytes."""
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


def to_csv(header: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return rows as CSV text. Numbers keep all digits."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()


def project_root() -> Path:
    """Return the folder of params.yaml, also for a copy that `dvc exp run --temp` makes.

    DVC_ROOT is the original project's folder with `.dvc`. params.yaml may be in a subfolder.
    """
    here = Path.cwd()
    if not (root := os.environ.get("DVC_ROOT")):
        return here
    copy = next((folder for folder in (here, *here.parents) if (folder / ".dvc").is_dir()), here)
    return Path(root).resolve() / here.relative_to(copy)


def is_copy() -> bool:
    """Return True in a copy of the project in which DVC runs an experiment."""
    return project_root().resolve() != Path.cwd().resolve()


def in_project(path: str) -> Path:
    """Return a path that a user wrote, relative to the project's folder."""
    return project_root() / os.path.expanduser(path)  # noqa: PTH111  # an unknown user is no error


def found(name: str) -> Path:
    """Return a file of this folder, or else of the project: a copy lacks what Git ignores."""
    return Path(name) if Path(name).exists() else in_project(name)


def state_folder() -> Path:
    """Return the folder of locks and checkpoints, which remain after a stage ends."""
    folder = project_root() / ".photofinish"
    with suppress(OSError):
        folder.mkdir(exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise UserError(f"{folder} can't be written: make the project's folder writable")
    return folder


def kept_copy(folder: Path) -> Path:
    """Return the folder for a copy of a stage's output, which DVC deletes before the stage runs."""
    return state_folder() / "kept" / os.path.relpath(folder)
