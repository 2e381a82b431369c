"""Two locks: one writer of a result at a time, and one timed training at a time on a machine."""

from __future__ import annotations

import math
import os
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from photofinish.errors import UserError
from photofinish.files import sha256_of_bytes

_PATIENCE_SECONDS = 15.0
"""Longer than a training run takes to exit after its DVC was killed."""


@contextmanager
def exclusive(folder: Path, *names: str, patience_seconds: float | None = None) -> Iterator[float]:
    """Hold a lock in `folder` for each name. Yield the seconds spent waiting."""
    patience_seconds = _PATIENCE_SECONDS if patience_seconds is None else patience_seconds
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        waited_seconds = 0.0
        for name in sorted(names):
            lock = FileLock(folder / f"{sha256_of_bytes(name.encode())[:16]}.lock")
            holder = f"the process that is using {name}"
            waited_seconds += _acquire(lock, holder, patience_seconds)
            stack.callback(lock.release)
        yield waited_seconds


@contextmanager
def exclusive_machine(what: str) -> Iterator[float]:
    """Hold this user's lock on timed training on this machine. Yield the seconds spent waiting.

    Without a lock, print a note and go on: no training needs it.
    """
    path = machine_lock()
    lock = FileLock(path, poll_interval=0.2)
    holder = ""
    with suppress(OSError):  # no file yet, or Windows, where a locked file can't be read
        holder = path.read_text(encoding="utf-8", errors="replace")
    holder = f"{holder or 'another process'}: only one timed run at a time ({path})"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        waited_seconds = _acquire(lock, holder, math.inf)
    except OSError as error:
        print(
            f"note: can't lock {path} ({error.strerror or error}), so another timed training may "
            f"run beside this one. Set XDG_STATE_HOME to a folder that can be written",
            file=sys.stderr,
            flush=True,
        )
        yield 0.0
        return
    try:
        # Windows refuses to open a locked file.
        with suppress(PermissionError), path.open("r+", encoding="utf-8") as file:
            file.truncate()
            file.write(f"process {os.getpid()} ({what})")
        yield waited_seconds
    finally:
        lock.release()


def machine_lock() -> Path:
    """Return the lock of this user on this machine.

    It is not in TMPDIR, because clusters give each job its own. It is named after the machine,
    because several may share a home folder.
    """
    folder = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(folder) / "photofinish" / f"{platform.node()}.lock"


def _acquire(lock: FileLock, holder: str, patience_seconds: float) -> float:
    """Acquire the lock within `patience_seconds`. Return the seconds spent waiting."""
    started_seconds = time.monotonic()
    try:
        lock.acquire(timeout=0)
    except Timeout:
        print(f"waiting for {holder}", file=sys.stderr, flush=True)
        try:
            lock.acquire(timeout=-1 if math.isinf(patience_seconds) else patience_seconds)
        except Timeout:
            raise UserError(
                f"{holder} is still running: end it or let it finish, then run this again"
            ) from None
    return time.monotonic() - started_seconds
