"""How busy the machine was while a network trained, and whether that makes its times doubtful."""

from __future__ import annotations

import os
import re
import resource
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pynvml

from photofinish.machine.accelerators import SliceError, whole_gpu
from photofinish.machine.host import read_or_empty
from photofinish.params.base import Record
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


class LoadWindow(Record):
    """From one reading to the next; both lie between epochs."""

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
    """how long this process's threads were ready to run and had no core; only Linux tells, and nothing is told of a
    training whose own processes share the cores"""
    major_page_faults: int
    """pages that had to be read from a disk"""
    swapped_pages: int | None
    """of the whole machine, in and out; only Linux tells"""
    gpu_clock_mhz: int | None = None
    gpu_slowdowns: tuple[str, ...] = ()
    """why the GPU held its clock down: heat or its power supply"""

    @property
    def waited_seconds(self) -> float:
        """How long its threads waited for a core, as far as is known."""
        return self.waited_for_core_seconds or 0.0

    @property
    def wanted_seconds(self) -> float:
        """How long its threads ran or would have."""
        return self.waited_seconds + self.own_cpu_seconds

    @property
    def core_seconds(self) -> float:
        """What all these cores together had to give."""
        return self.cores * self.wall_seconds

    @property
    def pages(self) -> int:
        """How many were read from a disk as memory was short; by what was swapped where that is told, for a split that
        is read from its file faults too, as it should."""
        return self.major_page_faults if self.swapped_pages is None else self.swapped_pages


def doubts(windows: Iterable[LoadWindow]) -> list[str]:
    """Why times measured meanwhile are to be taken with care, in words; nothing where the machine was quiet."""
    seen = list(windows)
    busy = [one for one in seen if one.others_cpu_seconds > MOST_SHARE_OF_OTHERS * one.core_seconds + _TICKS_SECONDS]
    waiting = [one for one in seen if one.waited_seconds > MOST_SHARE_WAITED * one.wanted_seconds + _TICKS_SECONDS]
    paging = [one for one in seen if one.pages > MOST_PAGES_A_SECOND * max(one.wall_seconds, 1.0)]
    slowed = [one for one in seen if one.gpu_slowdowns]

    used = sum(one.others_cpu_seconds for one in busy) / (sum(one.core_seconds for one in busy) or 1.0)
    waited = sum(one.waited_seconds for one in waiting) / (sum(one.wanted_seconds for one in waiting) or 1.0)
    reasons = ", ".join(dict.fromkeys(reason for one in slowed for reason in one.gpu_slowdowns))
    told = [
        (busy, f"other programs used {used:.0%} of the cores"),
        (waiting, f"its threads waited for a core for {waited:.0%} of the time they wanted one,"),
        (paging, "memory was read back from a disk"),
        (slowed, f"the GPU held its clock down ({reasons})"),
    ]
    total_seconds = sum(one.wall_seconds for one in seen) or 1.0
    found = []
    for doubtful, text in told:
        share = sum(one.wall_seconds for one in doubtful) / total_seconds
        if doubtful and share >= DOUBTFUL_SHARE:
            found.append(f"{text} in {share:.0%} of the time")
    return found


_SLOWDOWNS = {
    pynvml.nvmlClocksThrottleReasonHwSlowdown: "a brake of the hardware",
    pynvml.nvmlClocksThrottleReasonHwThermalSlowdown: "heat, by the hardware",
    pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown: "power supply",
    pynvml.nvmlClocksThrottleReasonSwThermalSlowdown: "heat",
}
"""A limit of power is none of these: a GPU that works hard runs into it as it should."""
GpuState = tuple[int | None, tuple[str, ...]]
"""its clock in MHz just now, and what slows it down, in words; or nothing known"""


def nvidia_gpu_state(uuid: str | None) -> Callable[[], GpuState]:
    """A function that reads the state of this GPU; of none, or where its driver doesn't tell, nothing."""
    handle: object | None = None
    if uuid:
        with suppress(pynvml.NVMLError, SliceError):
            handle = whole_gpu(uuid)

    def read() -> GpuState:
        if handle is None:
            return None, ()
        try:
            clock_mhz = int(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM))
            reasons = int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
        except pynvml.NVMLError:  # a virtual GPU, say, keeps it to itself
            return None, ()
        return clock_mhz, tuple(word for reason, word in _SLOWDOWNS.items() if reasons & reason)

    return read


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
    """Takes readings between epochs, seldom enough to cost nothing, and keeps what lay between them."""

    def __init__(self, gpu_state: Callable[[], GpuState], *, own_processes_share_cores: bool = False) -> None:
        self._gpu_state, self._own_processes_share_cores = gpu_state, own_processes_share_cores
        affinity = getattr(os, "sched_getaffinity", None)
        self._cores = sorted(affinity(0)) if affinity else list(range(os.cpu_count() or 1))
        # Where several processes train together, all that their common parent started is ours.
        self._root = psutil.Process(os.getppid()) if own_rank() else psutil.Process()
        self.windows: list[LoadWindow] = []
        self._pending: tuple[int, int] | None = None
        self.begin()

    def begin(self) -> None:
        """Look from here on; what came since the last reading is nobody's."""
        self._last = _Reading(
            at_seconds=time.monotonic(),
            cores_busy_seconds=_busy_seconds(self._cores),
            own_cpu_seconds=_tree_cpu_seconds(self._root),
            waited_for_core_seconds=None if self._own_processes_share_cores else _waited_for_core_seconds(),
            major_page_faults=resource.getrusage(resource.RUSAGE_SELF).ru_majflt,
            swapped_pages=_swapped_pages(),
        )
        self._cost_seconds = time.monotonic() - self._last.at_seconds
        self._pending = None

    def epoch_ended(self, repeat: int, epoch: int) -> None:
        """Look, unless the last reading is too near."""
        self._pending = repeat, epoch
        passed_seconds = time.monotonic() - self._last.at_seconds
        if passed_seconds >= max(LEAST_WINDOW_SECONDS, _COST_FACTOR * self._cost_seconds):
            self.look(repeat, epoch)

    def training_ended(self) -> None:
        """Look at what is left since the last reading."""
        if self._pending:
            self.look(*self._pending)

    def look(self, repeat: int, epoch: int) -> None:
        """Take a reading, and keep what lay between it and the last one."""
        before = self._last
        self.begin()
        now, (clock_mhz, slowdowns) = self._last, self._gpu_state()
        own_seconds = max(0.0, now.own_cpu_seconds - before.own_cpu_seconds)
        swapped_pages = _difference(before.swapped_pages, now.swapped_pages)
        self.windows.append(
            LoadWindow(
                repeat=repeat,
                last_epoch=epoch,
                wall_seconds=now.at_seconds - before.at_seconds,
                cores=len(self._cores),
                own_cpu_seconds=own_seconds,
                others_cpu_seconds=max(0.0, now.cores_busy_seconds - before.cores_busy_seconds - own_seconds),
                waited_for_core_seconds=_difference(before.waited_for_core_seconds, now.waited_for_core_seconds),
                major_page_faults=now.major_page_faults - before.major_page_faults,
                swapped_pages=None if swapped_pages is None else int(swapped_pages),
                gpu_clock_mhz=clock_mhz,
                gpu_slowdowns=slowdowns,
            )
        )


def _busy_seconds(cores: list[int]) -> float:
    """All that these cores did since the machine started; time that a hypervisor took away counts too."""
    times = psutil.cpu_times(percpu=True)
    listed = re.findall(r"^cpu(\d+) ", read_or_empty(Path("/proc/stat")), re.MULTILINE)  # one may be offline
    numbered = zip(map(int, listed) if listed else range(len(times)), times, strict=False)
    fields = ("user", "nice", "system", "irq", "softirq", "steal")
    return sum(getattr(each, field, 0.0) for core, each in numbered if core in cores for field in fields)


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
