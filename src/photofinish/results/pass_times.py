"""Where a process ran, its readings of instruments, and its overhead."""

from __future__ import annotations

import platform
from typing import Any, Literal

from photofinish.config.base import Record
from photofinish.machine.fingerprint import CpuTarget, GpuTarget
from photofinish.machine.host import git_commit, package_versions


class Readings(Record):
    """Readings of instruments that watch a job."""

    peak_memory_bytes: int | None = None
    """Peak memory of the device, or of the process on the CPU. The largest of several peaks."""
    peak_reserved_bytes: int | None = None
    """Most memory that PyTorch's allocator held on a script's GPU."""
    peak_host_memory_bytes: int | None = None
    """Largest resident set of the training process, or of any rank."""


class Where(Record):
    """Machine and software of a process that trained or measured."""

    host: CpuTarget | GpuTarget
    host_name: str
    device_name: str
    device_count: int = 1
    """Number of GPUs, or of processes on the CPU, that shared the training."""
    git_commit: str | None
    packages: dict[str, str]
    started_at_unix_seconds: float


class Overhead(Record):
    """Time of the training loop outside the timed passes, in the last process of the training.

    It is photofinish's own, so it is in no job's time.
    """

    seconds: float
    """Time for display and sampling the load."""
    checkpoint_seconds: float
    """Time to save checkpoints."""


class StepsTaken(Record):
    """Way in which the training's steps were launched: one by one, or captured in a CUDA graph."""

    kind: Literal["eager", "graph"]
    at_once: int
    """Number of steps in a graph."""
    why: str


def made_here(host: CpuTarget | GpuTarget) -> dict[str, Any]:
    """Return the fields about machine and software, for a job of this process."""
    return {
        "host": host,
        "host_name": platform.node(),
        "git_commit": git_commit(),
        "packages": package_versions(),
    }
