"""One timed training at a time on a machine, whichever project or user it belongs to: two would time each other."""

from __future__ import annotations

import fcntl
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from photofinish.errors import UserError

NAME = "photofinish-machine.lock"
_MOST_BYTES = 200


@contextmanager
def machine_to_itself(what: str) -> Iterator[float]:
    """Wait, however long, until no other training is timed here. Gives the seconds it had to wait.

    The kernel lets go of the lock when its process ends, however it ends. The file stays, for everybody to use.
    """
    path = Path(tempfile.gettempdir()) / NAME
    started_seconds = time.monotonic()
    handle = _open(path)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(
                f"waiting: {_holder(handle)} has this machine to itself; timed trainings never overlap ({path})",
                file=sys.stderr,
                flush=True,
            )
            fcntl.flock(handle, fcntl.LOCK_EX)
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"process {os.getpid()}, {what},".encode()[:_MOST_BYTES], 0)
        yield time.monotonic() - started_seconds
    finally:
        # Not by closing alone: processes that were forked from this one hold the file open too.
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


def _open(path: Path) -> int:
    """Never created where it exists: in a common folder, Linux refuses that for another user's file."""
    try:
        with suppress(FileExistsError):
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
            os.fchmod(handle, 0o666)  # whatever the umask: other users wait for it too
            return handle
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except OSError as error:
        raise UserError(
            f"{path}, which keeps timed trainings on this machine from overlapping, can't be opened: {error.strerror}. "
            f"Remove it, or have its owner remove it, while nothing trains"
        ) from error


def _holder(handle: int) -> str:
    return os.pread(handle, _MOST_BYTES, 0).decode(errors="replace") or "another process"
