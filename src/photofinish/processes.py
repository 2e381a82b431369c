"""The process of a stage: its rank, its start, and how it ends early."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import psutil

from photofinish.errors import EXIT_TERMINATED, TerminatedError

_TORCHRUN_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_STARTED_AT = "PHOTOFINISH_STAGE_STARTED_AT_MONOTONIC_SECONDS"
"""Variable that passes a stage's start to its ranks, which share the monotonic clock."""
_SHELLS = frozenset({"sh", "bash", "zsh", "dash", "fish", "ksh", "cmd.exe", "powershell.exe"})
_POLL_SECONDS = 1.0
_GRACE_SECONDS = 10.0


@dataclass(frozen=True)
class Rank:
    """Rank of this process among those that train together."""

    number: int
    """Rank from 0. Rank 0 writes, tracks and prints."""
    size: int
    """Number of processes."""
    local_number: int
    """Rank on this machine, which selects the device."""

    def __str__(self) -> str:
        return f"process {self.number} of {self.size}"


def own_rank() -> Rank | None:
    """Return this process's rank, or None if torchrun did not start it."""
    if not all(name in os.environ for name in _TORCHRUN_VARIABLES):
        return None
    return Rank(
        int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_RANK"])
    )


def seconds_since_process_start() -> float:
    """Return how long this process has run, to a hundredth of a second on Linux."""
    try:
        stat = Path("/proc/self/stat").read_text(encoding="utf-8")
    except OSError:
        return time.time() - psutil.Process().create_time()
    ticks = int(stat.rpartition(")")[2].split()[19])  # field 22 of proc(5)
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def note_start_of_stage(waited_seconds: float) -> None:
    """Pass the stage's start to its ranks, without the time it waited for its turn."""
    os.environ[_STARTED_AT] = repr(
        time.monotonic() - seconds_since_process_start() + waited_seconds
    )


def is_started_by_stage() -> bool:
    """Return True for a rank of a stage, False if a user called torchrun."""
    return _STARTED_AT in os.environ and own_rank() is not None


def seconds_since_stage_start() -> float:
    """Return how long the job has run. Ranks count from the start of their stage."""
    if is_started_by_stage():
        return time.monotonic() - float(os.environ[_STARTED_AT])
    return seconds_since_process_start()


def end_on_sigterm() -> None:
    """Make SIGTERM raise TerminatedError in the main thread, as Ctrl-C raises KeyboardInterrupt.

    Python drops an exception that is raised within a `__del__` or a fork hook, where a data loader
    spends part of its time. So the exception is raised each second until one is being handled.
    Windows has no timer for that, and there it is raised once.
    """
    has_timer = hasattr(signal, "setitimer")
    process = os.getpid()
    signals: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        if has_timer and number == signal.SIGALRM:
            if isinstance(sys.exception(), (KeyboardInterrupt, TerminatedError)):
                return
            number = signals[-1]
        elif has_timer and os.getpid() == process:  # else a fork, such as a loader's worker
            signals.append(number)
            signal.setitimer(signal.ITIMER_REAL, 1.0, 1.0)
        if number == signal.SIGTERM:
            raise TerminatedError("terminated")
        signal.default_int_handler(number, frame)

    signal.signal(signal.SIGTERM, end)
    if has_timer:
        signal.signal(signal.SIGALRM, end)
    if (
        signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    ):  # a shell's background jobs ignore Ctrl-C
        signal.signal(signal.SIGINT, end)


def end_with_parent() -> None:
    """End this process on SIGTERM, and when DVC or torchrun, which started it, has died.

    A killed DVC leaves its stage running, and the next `dvc repro` would start a second one.
    """
    end_on_sigterm()
    if "DVC_STAGE" in os.environ or own_rank():
        threading.Thread(
            target=_end_after, args=(_starters(),), name="lifeline", daemon=True
        ).start()


def _starters() -> list[psutil.Process]:
    """Return the ancestors up to DVC, including shells, or up to torchrun and its stage."""
    ancestors = psutil.Process().parents()
    if own_rank():
        return ancestors[: 2 if is_started_by_stage() else 1]
    count = 1
    while count < len(ancestors) and ancestors[count - 1].name() in _SHELLS:
        count += 1
    return ancestors[:count]


def _end_after(starters: list[psutil.Process]) -> None:
    """Send this process SIGTERM once one of `starters` has ended. Kill it after a grace time."""
    parent = os.getppid()
    while os.getppid() == parent and all(map(_is_alive, starters)):
        time.sleep(_POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_SECONDS)
    os._exit(EXIT_TERMINATED)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def end_group(process: int) -> None:
    """Send SIGTERM to a process that leads its session, and to all that it started."""
    if hasattr(os, "killpg"):
        os.killpg(process, signal.SIGTERM)
        return
    leader = psutil.Process(process)  # Windows has no groups
    for one in (*leader.children(recursive=True), leader):
        one.terminate()
