"""Files that are either whole or not there, their sha256, and the project's own folders."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from photofinish.errors import UserError
from photofinish.wording import byte_size

_CHUNK_BYTES = 1 << 20


def sha256_of_bytes(data: bytes) -> str:
    """The sha256 in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def sha256_of_file(path: Path) -> str:
    """The same of a file, however large it is."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """A temporary file beside `path`, which is forced to disk and renamed into place if all goes well, else removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)  # once renamed, it has that name no more


def write_bytes_atomically(path: Path, data: bytes) -> None:
    """Write a file of which, whatever happens, all is there or what was there before."""
    with atomic_file(path) as file:
        file.write(data)


def write_text_atomically(path: Path, text: str) -> None:
    """Write a file likewise, in UTF-8."""
    write_bytes_atomically(path, text.encode("utf-8"))


def to_json(value: Any) -> str:
    """JSON as every file here has it: the same value gives the same bytes."""
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


def write_json_atomically(path: Path, value: Any) -> None:
    """Write a file likewise, as `to_json` has it."""
    write_text_atomically(path, to_json(value))


def free_bytes(folder: Path) -> int:
    """How much room is left on the folder's disk."""
    return shutil.disk_usage(folder).free


def check_room(folder: Path, needed_bytes: int, what: str) -> None:
    """Refuse what the disk has no room for, rather now than after an hour of writing."""
    free = free_bytes(folder)
    if needed_bytes > free:
        raise UserError(
            f"no room for {what}: {byte_size(needed_bytes)} are still to be written and the disk of {folder} has"
            f" {byte_size(free)} free; make {byte_size(needed_bytes - free)} more room there, then run again"
        )


@contextmanager
def explained_when_full(folder: Path, what: str) -> Iterator[None]:
    """A disk that fills up while `what` is written becomes a message."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise UserError(
            f"no room for {what}: the disk of {folder} is full, or your share of it"
            f" ({byte_size(free_bytes(folder))} free); make room there, then run again"
        ) from error


def project_root() -> Path:
    """The project's folder. DVC names it also where it runs a stage in a copy (`dvc exp run --temp`)."""
    return Path(os.environ.get("DVC_ROOT") or Path.cwd()).resolve()


def state_folder() -> Path:
    """The folder of locks and checkpoints: what must survive a stage's end, and is no result."""
    return project_root() / ".photofinish"
