"""One writer at a time, and one timed training at a time on a machine."""

from __future__ import annotations

import math
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from photofinish.errors import UserError
from photofinish.files import sha256_of_bytes

_PATIENCE_SECONDS = 15.0
"""Longer than an orphaned trainer takes to end by itself."""


@contextmanager
def sole_writer(folder: Path, *held: str, patience_seconds: float | None = None) -> Iterator[float]:
    """Hold a lock in `folder` for each of the things named in `held`; wait for another process a little, not long.

    `patience_seconds` is for what another process may rightly take longer to write. Gives the seconds it had to wait.
    """
    started_seconds = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    patience_seconds = _PATIENCE_SECONDS if patience_seconds is None else patience_seconds
    with ExitStack() as stack:
        for name in sorted(held):
            path = _file(folder, name)
            lock, holder = FileLock(path), path.with_suffix(".pid")
            try:
                lock.acquire(timeout=0)
            except Timeout:
                print(f"waiting: process {_pid_in(holder)} is writing {name}", file=sys.stderr, flush=True)
                try:
                    lock.acquire(timeout=patience_seconds)
                except Timeout:
                    raise UserError(
                        f"process {_pid_in(holder)} is still writing {name}: "
                        f"wait until it is done, or end it, then run again"
                    ) from None
            stack.callback(lock.release)
            holder.write_text(str(os.getpid()), encoding="utf-8")
        yield time.monotonic() - started_seconds


def retired(folder: Path, name: str) -> AbstractContextManager[bool]:
    """Hold a lock for the last time, if nobody holds it: its files are gone afterwards. Gives whether it does."""
    return _retired(_file(folder, name))


def remove_unheld(folder: Path, locks: Path, unused_since_unix_seconds: float = math.inf) -> None:
    """Remove what is kept in `folder` by the keys of runs and unchanged since then, but for what a run holds."""
    for kept in folder.glob("*"):
        if is_older(kept, unused_since_unix_seconds):
            with retired(locks, kept.name) as is_free:
                if is_free:
                    shutil.rmtree(kept, ignore_errors=True)


def remove_forgotten_locks(folder: Path, unused_since_unix_seconds: float) -> None:
    """Remove the files of locks that nobody has held since then: each result that is trained leaves some behind."""
    for holder in folder.glob("*.pid"):
        if is_older(holder, unused_since_unix_seconds):
            with _retired(holder.with_suffix(".lock")):
                pass


def is_older(path: Path, unix_seconds: float) -> bool:
    """Whether it was last changed before then; another process may just have removed it."""
    try:
        return path.stat().st_mtime < unix_seconds
    except FileNotFoundError:
        return False


@contextmanager
def _retired(path: Path) -> Iterator[bool]:
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        # While it is held: who waits for it finds that it has no name any more, and makes a new one.
        path.with_suffix(".pid").unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        lock.release()


def _file(folder: Path, name: str) -> Path:
    return folder / f"{sha256_of_bytes(name.encode())[:16]}.lock"


def _pid_in(holder: Path) -> str:
    return holder.read_text(encoding="utf-8") if holder.is_file() else "(unknown)"


NAME = "photofinish-machine.lock"
_MOST_CHARACTERS = 200


def machine_identity() -> str:
    """The same for all who wait for each other in `machine_to_itself`: they share the folder that the lock is in."""
    folder = Path(tempfile.gettempdir()).stat()
    boot_id = Path("/proc/sys/kernel/random/boot_id")
    machine = boot_id.read_text(encoding="ascii").strip() if boot_id.is_file() else platform.node()
    return f"{machine} {folder.st_dev} {folder.st_ino}"


@contextmanager
def machine_to_itself(what: str) -> Iterator[float]:
    """Wait, however long, until no other training is timed here. Gives the seconds it had to wait.

    The kernel lets go of the lock when its process ends, however it ends. The file stays, for everybody to use.
    """
    path = Path(tempfile.gettempdir()) / NAME
    lock = FileLock(path, mode=0o666, poll_interval=0.2)  # whatever the umask: other users wait for it too
    started_seconds = time.monotonic()
    try:
        try:
            lock.acquire(timeout=0)
        except Timeout:
            holder = path.read_text(encoding="utf-8", errors="replace")[:_MOST_CHARACTERS] or "another process"
            print(
                f"waiting: {holder} has this machine to itself; timed trainings never overlap ({path})",
                file=sys.stderr,
                flush=True,
            )
            lock.acquire()
    except OSError as error:
        raise UserError(
            f"{path}, which keeps timed trainings on this machine from overlapping, can't be opened: {error.strerror}. "
            f"Remove it, or have its owner remove it, while nothing trains"
        ) from error
    try:
        with path.open("r+", encoding="utf-8") as file:  # never created: Linux refuses that for another user's file
            file.truncate()
            file.write(f"process {os.getpid()}, {what},")
        yield time.monotonic() - started_seconds
    finally:
        lock.release()
