"""Rank of this process, and how long its stage has run."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

_TORCHRUN_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_STARTED_AT = "PHOTOFINISH_STAGE_STARTED_AT_MONOTONIC_SECONDS"
"""Variable that passes a stage's start to its ranks, which share the monotonic clock."""


@dataclass(frozen=True)
class Rank:
    """Rank of this process among the processes that train together."""

    number: int
    """Rank from 0."""
    size: int
    """Number of processes."""
    local_number: int
    """Rank on this machine, which selects the device."""

    @property
    def is_main(self) -> bool:
        """True on rank 0, the only rank that writes, tracks and prints."""
        return self.number == 0


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
    """Pass the stage's start time to its ranks, moved by the time it waited for locks."""
    os.environ[_STARTED_AT] = repr(
        time.monotonic() - seconds_since_process_start() + waited_seconds
    )


def is_started_by_stage() -> bool:
    """Return True for a rank of a stage, False if a user called torchrun."""
    return _STARTED_AT in os.environ and own_rank() is not None


def seconds_since_stage_start() -> float:
    """Return how long the job has run, counted from the start of the stage."""
    if is_started_by_stage():
        return time.monotonic() - float(os.environ[_STARTED_AT])
    return seconds_since_process_start()
