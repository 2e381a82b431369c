"""How busy the machine was while a network trained, and whether that makes its times doubtful."""

from __future__ import annotations

import os
import re
import resource
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil
from pydantic import BaseModel, ConfigDict

from photofinish.machine.accelerators import GpuState
from photofinish.machine.cpu import read_or_empty
from photofinish.processes import own_rank

MOST_SHARE_OF_OTHERS = 0.10
"""of the cores"""
MOST_SHARE_WAITED = 0.10
"""of the time that threads wanted a core"""
MOST_PAGES_A_SECOND = 50
DOUBTFUL_SHARE = 0.10
"""of the time watched: what happens in less of it, medians pass over"""
_TICKS_SECONDS = 0.05
"""The system counts the time of processes in hundredths of a second; a few of them are no evidence."""


class LoadWindow(BaseModel):
    """From one reading to the next; both lie between epochs."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    repeat: int
    """from 1"""
    last_epoch: int
    wall_seconds: float
    cores: int
    """that this process may use"""
    own_cpu_seconds: float
    """of the training and all processes it started"""
    others_cpu_seconds: float
    """of everything else, on the same cores"""
    waited_for_core_seconds: float | None
    """how long this process's threads were ready to run and had no core; only Linux tells"""
    major_page_faults: int
    """pages that had to be read from a disk"""
    swapped_pages: int | None
    """of the whole machine, in and out; only Linux tells"""
    gpu_clock_mhz: int | None = None
    gpu_slowdowns: tuple[str, ...] = ()
    """why the GPU held its clock down: heat or its power supply"""


def doubts(windows: Iterable[LoadWindow]) -> list[str]:
    """Why times measured meanwhile are to be taken with care, in words; nothing where the machine was quiet."""
    seen = list(windows)
    found = []
    for is_so, tell in _CHECKS:
        doubtful = [window for window in seen if is_so(window)]
        share = _seconds(doubtful) / (_seconds(seen) or 1.0)
        if doubtful and share >= DOUBTFUL_SHARE:
            found.append(f"{tell(doubtful)} in {share:.0%} of the time")
    return found


def _others_were_busy(window: LoadWindow) -> bool:
    return window.others_cpu_seconds > MOST_SHARE_OF_OTHERS * window.cores * window.wall_seconds + _TICKS_SECONDS


def _waited(window: LoadWindow) -> bool:
    waited = window.waited_for_core_seconds or 0.0
    return waited > MOST_SHARE_WAITED * (waited + window.own_cpu_seconds) + _TICKS_SECONDS


def _paged(window: LoadWindow) -> bool:
    """Where the system tells, by what was swapped: a split read from its file faults too, as it should."""
    pages = window.major_page_faults if window.swapped_pages is None else window.swapped_pages
    return pages > MOST_PAGES_A_SECOND * max(window.wall_seconds, 1.0)


def _tell_others(windows: list[LoadWindow]) -> str:
    core_seconds = sum(window.cores * window.wall_seconds for window in windows)
    share = sum(window.others_cpu_seconds for window in windows) / core_seconds
    return f"other programs used {share:.0%} of the cores"


def _tell_waited(windows: list[LoadWindow]) -> str:
    waited = sum(window.waited_for_core_seconds or 0.0 for window in windows)
    share = waited / (waited + sum(window.own_cpu_seconds for window in windows))
    return f"its threads waited for a core for {share:.0%} of the time they wanted one,"


def _tell_slowed(windows: list[LoadWindow]) -> str:
    reasons = dict.fromkeys(reason for window in windows for reason in window.gpu_slowdowns)
    return f"the GPU held its clock down ({', '.join(reasons)})"


def _seconds(windows: list[LoadWindow]) -> float:
    return sum(window.wall_seconds for window in windows)


_CHECKS: tuple[tuple[Callable[[LoadWindow], bool], Callable[[list[LoadWindow]], str]], ...] = (
    (_others_were_busy, _tell_others),
    (_waited, _tell_waited),
    (_paged, lambda _windows: "memory was read back from a disk"),
    (lambda window: bool(window.gpu_slowdowns), _tell_slowed),
)


LEAST_WINDOW_SECONDS = 0.5
"""The system counts in hundredths of a second: in less, they are too coarse."""
_COST_FACTOR = 200
"""A reading is followed by at least so many times what it took before the next."""


@dataclass(frozen=True)
class _Reading:
    at_seconds: float
    cores_busy_seconds: float
    own_cpu_seconds: float
    waited_for_core_seconds: float | None
    major_page_faults: int
    swapped_pages: int | None


class MachineWatch:
    def __init__(self, gpu_state: Callable[[], GpuState | None]) -> None:
        self._gpu_state = gpu_state
        self._cores = _usable_cores()
        # Where several processes train together, all that their common parent started is ours.
        self._root = psutil.Process(os.getppid()) if own_rank() else psutil.Process()
        self.windows: list[LoadWindow] = []
        self._pending: tuple[int, int] | None = None
        self.begin()

    def begin(self) -> None:
        """Look from here on; what came since the last reading is nobody's."""
        started_seconds = time.monotonic()
        self._last = self._read()
        self._cost_seconds = time.monotonic() - started_seconds
        self._pending = None

    def epoch_ended(self, repeat: int, epoch: int) -> None:
        self._pending = repeat, epoch
        passed_seconds = time.monotonic() - self._last.at_seconds
        if passed_seconds >= max(LEAST_WINDOW_SECONDS, _COST_FACTOR * self._cost_seconds):
            self._look(repeat, epoch)

    def training_ended(self) -> None:
        """Look at what is left since the last reading."""
        if self._pending:
            self._look(*self._pending)

    def _look(self, repeat: int, epoch: int) -> None:
        before = self._last
        self.begin()
        now, gpu = self._last, self._gpu_state()
        own_seconds = max(0.0, now.own_cpu_seconds - before.own_cpu_seconds)
        window = LoadWindow(
            repeat=repeat,
            last_epoch=epoch,
            wall_seconds=now.at_seconds - before.at_seconds,
            cores=len(self._cores),
            own_cpu_seconds=own_seconds,
            others_cpu_seconds=max(0.0, now.cores_busy_seconds - before.cores_busy_seconds - own_seconds),
            waited_for_core_seconds=_difference(before.waited_for_core_seconds, now.waited_for_core_seconds),
            major_page_faults=now.major_page_faults - before.major_page_faults,
            swapped_pages=_whole(_difference(before.swapped_pages, now.swapped_pages)),
            gpu_clock_mhz=gpu.clock_mhz if gpu else None,
            gpu_slowdowns=gpu.slowdowns if gpu else (),
        )
        self.windows.append(window)

    def _read(self) -> _Reading:
        return _Reading(
            at_seconds=time.monotonic(),
            cores_busy_seconds=_busy_seconds(self._cores),
            own_cpu_seconds=_tree_cpu_seconds(self._root),
            waited_for_core_seconds=_waited_for_core_seconds(),
            major_page_faults=resource.getrusage(resource.RUSAGE_SELF).ru_majflt,
            swapped_pages=_swapped_pages(),
        )


def _usable_cores() -> list[int]:
    affinity = getattr(os, "sched_getaffinity", None)
    return sorted(affinity(0)) if affinity else list(range(os.cpu_count() or 1))


def _busy_seconds(cores: list[int]) -> float:
    """All that these cores did since the machine started; time that a hypervisor took away counts too."""
    times = psutil.cpu_times(percpu=True)
    fields = ("user", "nice", "system", "irq", "softirq", "steal")
    return sum(getattr(times[core], field, 0.0) for core in cores if core < len(times) for field in fields)


def _tree_cpu_seconds(root: psutil.Process) -> float:
    """Of a process, of those below it, and of those that ended and were waited for."""
    total_seconds = 0.0
    for process in (root, *root.children(recursive=True)):
        try:
            total_seconds += sum(process.cpu_times()[:4])
        except psutil.Error:  # it ended just now, or is none of our business
            continue
    return total_seconds


def _waited_for_core_seconds() -> float | None:
    """Of this process's threads; see Linux's sched-stats."""
    waits = [read_or_empty(thread / "schedstat").split() for thread in Path("/proc/self/task").glob("*")]
    nanoseconds = [int(fields[1]) for fields in waits if len(fields) > 1]
    return sum(nanoseconds) / 1e9 if nanoseconds else None


def _swapped_pages() -> int | None:
    counts = re.findall(r"^pswp(?:in|out) (\d+)$", read_or_empty(Path("/proc/vmstat")), re.MULTILINE)
    return sum(map(int, counts)) if counts else None


def _difference(before: float | None, now: float | None) -> float | None:
    """Threads that ended take what they waited with them."""
    return None if before is None or now is None else max(0.0, now - before)


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
