"""How busy the machine was while a network trained, and whether that makes its times unreliable."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pynvml

from photofinish.config.base import Record
from photofinish.machine.host import read_or_empty
from photofinish.processes import own_rank

MOST_SHARE_OF_OTHERS = 0.10
"""of the cores' time"""
MOST_SHARE_WAITED = 0.10
"""of the time in which threads were ready to run"""
MOST_PAGES_A_SECOND = 50
DOUBTFUL_SHARE = 0.10
"""of the time watched; medians are robust against less"""
_TICKS_SECONDS = 0.05
"""Tolerance for the system's counters, which advance in hundredths of a second."""
LEAST_WINDOW_SECONDS = 0.5
_COST_FACTOR = 200
"""The next reading is at least this many times a reading's own duration away."""
_PAGE_BYTES = 4096
_SLOWDOWNS = {
    pynvml.nvmlClocksThrottleReasonHwSlowdown: "a brake of the hardware",
    pynvml.nvmlClocksThrottleReasonHwThermalSlowdown: "heat, by the hardware",
    pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown: "power supply",
    pynvml.nvmlClocksThrottleReasonSwThermalSlowdown: "heat",
}
"""Without the power limit, which a GPU at full load reaches as intended."""


class LoadWindow(Record):
    """Load between two readings, which both lie between epochs."""

    repeat: int
    """from 1"""
    last_epoch: int
    wall_seconds: float
    cores: int
    """that this process may use"""
    own_cpu_seconds: float
    """of the training and all processes it started"""
    others_cpu_seconds: float
    """of all other processes on the same cores"""
    waited_for_core_seconds: float | None
    """time in which this process's threads were ready to run but had no core. None if the system does not count it, or
    if several processes of the training share the cores."""
    major_page_faults: int
    """pages that had to be read from a disk"""
    swapped_pages: int | None
    """of the whole machine, in and out"""
    gpu_clock_mhz: int | None = None
    gpu_slowdowns: tuple[str, ...] = ()
    """why the GPU held its clock down: heat or its power supply"""

    @property
    def core_seconds(self) -> float:
        """Time that all these cores together had."""
        return self.cores * self.wall_seconds

    @property
    def waited_seconds(self) -> float:
        """Time waited for a core, 0 if it was not counted."""
        return self.waited_for_core_seconds or 0.0

    @property
    def ready_seconds(self) -> float:
        """Time in which this process's threads ran or waited for a core."""
        return self.own_cpu_seconds + self.waited_seconds

    @property
    def pages(self) -> int:
        """Number of pages read back as memory was short. Page faults count files too, so swapped pages come first."""
        return self.major_page_faults if self.swapped_pages is None else self.swapped_pages


def load_warnings(windows: Iterable[LoadWindow]) -> list[str]:
    """Return the reasons why times measured in these windows are unreliable, or nothing if the machine was quiet."""
    seen = list(windows)
    busy = [
        one
        for one in seen
        if one.others_cpu_seconds > MOST_SHARE_OF_OTHERS * one.core_seconds + _TICKS_SECONDS
    ]
    waiting = [
        one
        for one in seen
        if one.waited_seconds > MOST_SHARE_WAITED * one.ready_seconds + _TICKS_SECONDS
    ]
    paging = [one for one in seen if one.pages > MOST_PAGES_A_SECOND * max(one.wall_seconds, 1.0)]
    slowed = [one for one in seen if one.gpu_slowdowns]

    used = sum(one.others_cpu_seconds for one in busy) / (
        sum(one.core_seconds for one in busy) or 1.0
    )
    waited = sum(one.waited_seconds for one in waiting) / (
        sum(one.ready_seconds for one in waiting) or 1.0
    )
    reasons = ", ".join(dict.fromkeys(reason for one in slowed for reason in one.gpu_slowdowns))
    total_seconds = sum(one.wall_seconds for one in seen)
    found = []
    for doubtful, text in (
        (busy, f"other programs used {used:.0%} of the cores"),
        (waiting, f"its threads waited for a core for {waited:.0%} of the time they wanted one,"),
        (paging, "memory was read back from a disk"),
        (slowed, f"the GPU held its clock down ({reasons})"),
    ):
        doubtful_seconds = sum(one.wall_seconds for one in doubtful)
        if doubtful_seconds > 0 and doubtful_seconds >= DOUBTFUL_SHARE * total_seconds:
            found.append(f"{text} in {doubtful_seconds / total_seconds:.0%} of the time")
    return found


GpuState = tuple[int | None, tuple[str, ...]]
"""Current clock in MHz, and the reasons that slow the GPU down."""


def nvidia_gpu_state(uuid: str | None) -> Callable[[], GpuState]:
    """Return a function that reads the state of this GPU; it returns `(None, ())` if there is none to read."""
    handle: Any = None
    if uuid:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")

    def read() -> GpuState:
        if handle is None:
            return None, ()
        try:
            clock_mhz = int(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM))
            reasons = int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
        except pynvml.NVMLError:  # a virtual GPU, for example
            return None, ()
        return clock_mhz, tuple(text for reason, text in _SLOWDOWNS.items() if reasons & reason)

    return read


@dataclass(frozen=True)
class _Reading:
    at_seconds: float
    cores_busy_seconds: float
    own_cpu_seconds: float
    waited_for_core_seconds: float | None
    major_page_faults: int
    swapped_pages: int


class LoadMonitor:
    """Reads the system's counters between epochs, rarely enough to cost nothing."""

    def __init__(
        self, gpu_state: Callable[[], GpuState], *, own_processes_share_cores: bool = False
    ) -> None:
        self._gpu_state, self._own_processes_share_cores = gpu_state, own_processes_share_cores
        affinity = getattr(os, "sched_getaffinity", None)
        self._cores = sorted(affinity(0)) if affinity else list(range(os.cpu_count() or 1))
        # With several ranks, all processes below their common parent belong to the training.
        self._root = psutil.Process(os.getppid()) if own_rank() else psutil.Process()
        self.windows: list[LoadWindow] = []
        self.begin()

    def begin(self) -> None:
        """Start a window."""
        self._last = _Reading(
            at_seconds=time.monotonic(),
            cores_busy_seconds=_busy_seconds(self._cores),
            own_cpu_seconds=_tree_cpu_seconds(self._root),
            waited_for_core_seconds=None
            if self._own_processes_share_cores
            else _waited_for_core_seconds(),
            major_page_faults=resource.getrusage(resource.RUSAGE_SELF).ru_majflt,
            swapped_pages=_swapped_pages(),
        )
        self._cost_seconds = time.monotonic() - self._last.at_seconds
        self._pending: tuple[int, int] | None = None

    def epoch_ended(self, repeat: int, epoch: int) -> None:
        """End the window, unless it is too short."""
        self._pending = repeat, epoch
        passed_seconds = time.monotonic() - self._last.at_seconds
        if passed_seconds >= max(LEAST_WINDOW_SECONDS, _COST_FACTOR * self._cost_seconds):
            self.look(repeat, epoch)

    def training_ended(self) -> None:
        """End the last window."""
        if self._pending:
            self.look(*self._pending)

    def look(self, repeat: int, epoch: int) -> None:
        """End the window, however short, and start the next one."""
        before = self._last
        self.begin()
        now, (clock_mhz, slowdowns) = self._last, self._gpu_state()
        own_seconds = max(0.0, now.own_cpu_seconds - before.own_cpu_seconds)
        waited_seconds = None
        if before.waited_for_core_seconds is not None and now.waited_for_core_seconds is not None:
            # Negative if threads have ended: the system forgets how long they waited.
            waited_seconds = max(0.0, now.waited_for_core_seconds - before.waited_for_core_seconds)
        self.windows.append(
            LoadWindow(
                repeat=repeat,
                last_epoch=epoch,
                wall_seconds=now.at_seconds - before.at_seconds,
                cores=len(self._cores),
                own_cpu_seconds=own_seconds,
                others_cpu_seconds=max(
                    0.0, now.cores_busy_seconds - before.cores_busy_seconds - own_seconds
                ),
                waited_for_core_seconds=waited_seconds,
                major_page_faults=now.major_page_faults - before.major_page_faults,
                swapped_pages=now.swapped_pages - before.swapped_pages,
                gpu_clock_mhz=clock_mhz,
                gpu_slowdowns=slowdowns,
            )
        )


def _busy_seconds(cores: list[int]) -> float:
    """Return the CPU time of everything on these cores since boot, with the time that a hypervisor took away."""
    fields = ("user", "nice", "system", "irq", "softirq", "steal")
    times = [each for core, each in enumerate(psutil.cpu_times(percpu=True)) if core in cores]
    return sum(getattr(each, field, 0.0) for each in times for field in fields)


def _tree_cpu_seconds(root: psutil.Process) -> float:
    """Return the CPU time of a process, its descendants, and the children it waited for."""
    total_seconds = 0.0
    for process in (root, *root.children(recursive=True)):
        with suppress(psutil.Error):  # it has ended, or belongs to another user
            total_seconds += sum(process.cpu_times()[:4])
    return total_seconds


def _waited_for_core_seconds() -> float | None:
    """Return how long this process's threads waited for a core (Linux: Documentation/scheduler/sched-stats)."""
    fields = [
        read_or_empty(thread / "schedstat").split() for thread in Path("/proc/self/task").glob("*")
    ]
    nanoseconds = [int(each[1]) for each in fields if len(each) > 1]
    return sum(nanoseconds) / 1e9 if nanoseconds else None


def _swapped_pages() -> int:
    swap = psutil.swap_memory()
    return int(swap.sin + swap.sout) // _PAGE_BYTES
