"""What a full disk means to who runs the stage: how much room is missing, and where."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.filesize import decimal

from photofinish.errors import UserError

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def check_room(folder: Path, needed_bytes: int, what: str) -> None:
    """Rather now than after an hour of writing."""
    free = free_bytes(folder)
    if needed_bytes > free:
        raise UserError(
            f"no room for {what}: {decimal(needed_bytes)} are still to be written and the disk of {folder} has"
            f" {decimal(free)} free; make {decimal(needed_bytes - free)} more room there, then run again"
        )


@contextmanager
def explained_when_full(folder: Path, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        raise UserError(
            f"no room for {what}: the disk of {folder} is full, or your share of it"
            f" ({decimal(free_bytes(folder))} free); make room there, then run again"
        ) from error
