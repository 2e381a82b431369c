"""One writer at a time: a training run holds its output folder and its checkpoints."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from photofinish.errors import UserError
from photofinish.files import sha256_of_bytes

_PATIENCE_SECONDS = 15.0
"""Longer than an orphaned trainer takes to end by itself."""


@contextmanager
def sole_writer(folder: Path, *held: str) -> Iterator[float]:
    """Hold a lock in `folder` for each of the things named in `held`; wait for another process a little, not long.

    Gives the seconds it had to wait.
    """
    started_seconds = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        for name in sorted(held):
            stack.enter_context(_lock(folder / f"{sha256_of_bytes(name.encode())[:16]}.lock", name))
        yield time.monotonic() - started_seconds


@contextmanager
def _lock(path: Path, name: str) -> Iterator[None]:
    lock, holder = FileLock(path), path.with_suffix(".pid")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        print(f"waiting: process {_pid_in(holder)} is writing {name}", file=sys.stderr, flush=True)
        try:
            lock.acquire(timeout=_PATIENCE_SECONDS)
        except Timeout:
            raise UserError(
                f"process {_pid_in(holder)} is still writing {name}: wait until it is done, or end it, then run again"
            ) from None
    try:
        holder.write_text(str(os.getpid()), encoding="utf-8")
        yield
    finally:
        lock.release()


def _pid_in(holder: Path) -> str:
    return holder.read_text(encoding="utf-8") if holder.is_file() else "(unknown)"
