"""Times of a process that trains or measures, and the machine that took them."""

from __future__ import annotations

import platform
from typing import Any, Literal

from pydantic import Field

from photofinish.config.base import Record
from photofinish.machine.fingerprint import CpuTarget, GpuTarget
from photofinish.machine.host import git_commit, package_versions
from photofinish.machine.load import LoadWindow


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


class ProcessTimes(Readings, Where):
    """Times of a process that trains or measures, without its passes."""

    training_image_count: int
    steps_per_epoch: int | None = None
    images_per_second: float | None
    """Training samples divided by the median training time of an epoch, over all repeats."""
    startup_seconds: float
    """Time from the process's start to the first step, without warm-up and photofinish's checks."""
    startup_cpu_seconds: float | None = None
    """CPU time of the main thread in the start-up."""
    total_seconds: float
    """Time from the process's start to the last result, without warm-up, checks and tracking.

    For a resumed run, the sum over its processes.
    """
    load: tuple[LoadWindow, ...]
    """Load between readings after epochs."""
    may_stop_early: bool = Field(default=False, exclude=True)
    """True if early stopping may end the job before its untimed epochs."""


def made_here(host: CpuTarget | GpuTarget) -> dict[str, Any]:
    """Return the fields about machine and software, for a job of this process."""
    return {
        "host": host,
        "host_name": platform.node(),
        "git_commit": git_commit(),
        "packages": package_versions(),
    }
