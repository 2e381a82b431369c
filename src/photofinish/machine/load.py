"""The load of the machine during a training run, and when it makes times unreliable."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pynvml

from photofinish.config.base import Record
from photofinish.machine.host import read_or_empty
from photofinish.stage.process import own_rank

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

MOST_SHARE_OF_OTHERS = 0.10
"""Maximum CPU time of other programs, as a share of the cores' time, by hand, as are those below.

If they were more, noise would make a Yes or a No. If less, a desktop would always be busy.
"""
CONTENDED_SHARE = 0.90
"""Share of the cores' time in use from which other programs take cores away."""
MOST_SHARE_WAITED = 0.10
"""Maximum time of waiting for a core, as a share of the time that threads wanted one."""
MOST_PAGES_A_SECOND = 50  # 0.2 MB/s: more means that memory is too small
DOUBTFUL_SHARE = 0.10
"""Smaller shares of the time give no warning, because they move a mean by a few percent."""
_TICKS_SECONDS = 0.05
"""Tolerance for the system's counters, which advance in hundredths of a second."""
LEAST_WINDOW_SECONDS = 1.0
"""Shortest window, because a reading takes some milliseconds."""
_PAGE_BYTES = 4096
_READINGS, _READING_SECONDS, _IDLE_PERCENT = 6, 0.3, 5
"""Readings of a GPU's utilization, their distance, and the most of a desktop's, by hand."""
_SLOWDOWNS = {
    pynvml.nvmlClocksThrottleReasonHwSlowdown: "protection of the hardware",
    pynvml.nvmlClocksThrottleReasonHwThermalSlowdown: "heat, by the hardware",
    pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown: "power supply",
    pynvml.nvmlClocksThrottleReasonSwThermalSlowdown: "heat",
}
"""Reasons for a slow GPU, except the power limit, which full load reaches as intended."""


class LoadWindow(Record):
    """Load between two readings, which are both taken between epochs."""

    wall_seconds: float
    cores: int
    """Number of cores that this process may use."""
    own_cpu_seconds: float
    """CPU time of the training run and all processes it started."""
    others_cpu_seconds: float
    """CPU time of all other processes on these cores."""
    waited_for_core_seconds: float | None
    """Time in which threads of this process were ready to run but had no core.

    None if the system does not count it, or if processes of the training run share the cores.
    """
    major_page_faults: int
    """Number of pages that were read from a disk."""
    swapped_pages: int | None
    """Number of pages that the whole machine swapped in and out."""
    gpu_slowdowns: tuple[str, ...] = ()
    """Reasons why the GPU reduced its clock."""
    gpu_others: int = 0
    """Number of other processes on the GPU, also idle ones. 0 in a container, which hides them.

    For a script, 1 if the GPU computed before it began or after it ended.
    """


def load_warnings(windows: Iterable[LoadWindow]) -> list[str]:
    """Return why times in these windows are unreliable. Empty on a quiet machine."""
    windows = list(windows)
    total_seconds = sum(window.wall_seconds for window in windows)
    doubtful_seconds: defaultdict[str, float] = defaultdict(float)
    others = cores = waited = ready = 0.0
    for window in windows:
        core_seconds = window.cores * window.wall_seconds
        waited_seconds = window.waited_for_core_seconds or 0.0
        ready_seconds = window.own_cpu_seconds + waited_seconds
        # Page faults count mapped files too, so swapped pages come first.
        pages = window.swapped_pages
        pages = window.major_page_faults if pages is None else pages
        used_seconds = window.own_cpu_seconds + window.others_cpu_seconds
        takes_cores = (
            window.others_cpu_seconds > MOST_SHARE_OF_OTHERS * core_seconds + _TICKS_SECONDS
        )
        if takes_cores and used_seconds >= CONTENDED_SHARE * core_seconds:
            doubtful_seconds["busy"] += window.wall_seconds
            others, cores = others + window.others_cpu_seconds, cores + core_seconds
        if waited_seconds > MOST_SHARE_WAITED * ready_seconds + _TICKS_SECONDS:
            doubtful_seconds["waiting"] += window.wall_seconds
            waited, ready = waited + waited_seconds, ready + ready_seconds
        if pages > MOST_PAGES_A_SECOND * max(window.wall_seconds, 1.0):
            doubtful_seconds["paging"] += window.wall_seconds
        if window.gpu_slowdowns:
            doubtful_seconds["slowed"] += window.wall_seconds
        if window.gpu_others:
            doubtful_seconds["shared"] += window.wall_seconds
    slowdowns = dict.fromkeys(reason for window in windows for reason in window.gpu_slowdowns)
    share_of_others = others / (cores or 1.0)
    share_waited = waited / (ready or 1.0)
    texts = {
        "busy": f"other programs used {share_of_others:.0%} of the cores",
        "waiting": f"its threads waited for a core {share_waited:.0%} of the time they wanted one",
        "paging": "memory was read back from a disk",
        "slowed": f"the GPU reduced its clock ({', '.join(slowdowns)})",
        "shared": "other programs were on the GPU",
    }
    return [
        f"for {doubtful_seconds[key] / total_seconds:.0%} of the run, {text}"
        for key, text in texts.items()
        if 0 < doubtful_seconds[key] >= DOUBTFUL_SHARE * total_seconds
    ]


def share_of_others(windows: Sequence[LoadWindow]) -> float:
    """Return the share of all cores that other programs used, or 0 if that does not matter."""
    cores_seconds = sum(window.cores * window.wall_seconds for window in windows)
    share = sum(window.others_cpu_seconds for window in windows) / (cores_seconds or 1.0)
    return share if share > MOST_SHARE_OF_OTHERS else 0.0


GpuState = tuple[tuple[str, ...], frozenset[int]]
"""Reasons for a GPU's reduced clock, and the processes that compute on it."""


def nvidia_handle(gpu: str) -> Any:
    """Return NVML's handle of a GPU, by its UUID or place."""
    pynvml.nvmlInit()
    if gpu.isdigit():
        return pynvml.nvmlDeviceGetHandleByIndex(int(gpu))
    return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{gpu.removeprefix('GPU-')}")


def nvidia_gpu_works(gpu: str) -> bool:
    """Return True if a GPU computes, for any program, while nothing of this process runs there.

    A container hides the programs, but not this.
    """
    percents = []
    with suppress(pynvml.NVMLError):  # there is none of AMD's
        handle = nvidia_handle(gpu)
        for _ in range(_READINGS):
            time.sleep(_READING_SECONDS)
            percents.append(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    return min(percents[-3:], default=0) > _IDLE_PERCENT


def nvidia_gpu_state(gpu: str | None) -> Callable[[], GpuState]:
    """Return a function that reads the state of a GPU, by its UUID or place. It needs NVML."""
    handle: Any = None
    with suppress(pynvml.NVMLError):
        handle = nvidia_handle(gpu) if gpu else None

    def read() -> GpuState:
        reasons, processes = 0, frozenset[int]()
        if handle is not None:  # a virtual GPU may have neither
            with suppress(pynvml.NVMLError):
                reasons = int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
            with suppress(pynvml.NVMLError):
                running = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
                processes = frozenset(each.pid for each in running)
        return tuple(text for bit, text in _SLOWDOWNS.items() if reasons & bit), processes

    return read


class LoadMonitor:
    """Reader of the system's counters between epochs, too rare to affect times."""

    def __init__(
        self, gpu_state: Callable[[], GpuState], *, own_processes_share_cores: bool = False
    ) -> None:
        self._gpu_state = gpu_state
        self._own_processes_share_cores = own_processes_share_cores
        affinity = getattr(os, "sched_getaffinity", None)
        self._cores = sorted(affinity(0)) if affinity else list(range(os.cpu_count() or 1))
        # Of several ranks, all processes below their common parent count.
        self._root = psutil.Process(os.getppid()) if own_rank() else psutil.Process()
        self.windows: list[LoadWindow] = []
        self.begin()

    def begin(self) -> None:
        swap = psutil.swap_memory()
        self._last = {
            "wall_seconds": time.monotonic(),
            "busy_seconds": _busy_seconds(self._cores),
            "own_seconds": _tree_cpu_seconds(self._root),
            "waited_seconds": sum(waited_for_core_seconds().values()),
            "faults": resource.getrusage(resource.RUSAGE_SELF).ru_majflt if resource else 0,
            "swapped": (swap.sin + swap.sout) // _PAGE_BYTES,
        }
        self._slowdowns, on_gpu = self._gpu_state()
        # A container may list its host's processes, whose numbers mean nothing in it.
        others = on_gpu and on_gpu - {process.pid for process in _tree(self._root)}
        self._gpu_others = sum(map(psutil.pid_exists, others))
        self._has_epochs = False

    def epoch_ended(self) -> None:
        """End the window, unless it is too short."""
        self._has_epochs = True
        if time.monotonic() - self._last["wall_seconds"] >= LEAST_WINDOW_SECONDS:
            self.sample()

    def training_ended(self) -> None:
        """End the last window, unless no epoch has ended in it."""
        if self._has_epochs:
            self.sample()

    def sample(self) -> None:
        """End the window, however short, and start the next one."""
        before, gpu_others = self._last, self._gpu_others
        self.begin()
        # Negative if threads have ended, because the system drops their counters.
        passed = {name: max(0, value - before[name]) for name, value in self._last.items()}
        counts_waiting = not self._own_processes_share_cores and self._last["waited_seconds"] > 0
        self.windows.append(
            LoadWindow(
                wall_seconds=passed["wall_seconds"],
                cores=len(self._cores),
                own_cpu_seconds=passed["own_seconds"],
                others_cpu_seconds=max(0.0, passed["busy_seconds"] - passed["own_seconds"]),
                waited_for_core_seconds=passed["waited_seconds"] if counts_waiting else None,
                major_page_faults=int(passed["faults"]),
                swapped_pages=int(passed["swapped"]),
                gpu_slowdowns=self._slowdowns,
                gpu_others=max(gpu_others, self._gpu_others),
            )
        )


def _busy_seconds(cores: list[int]) -> float:
    """Return the CPU time of everything on these cores since boot, including stolen time."""
    times = psutil.cpu_times(percpu=True)
    fields = ("user", "nice", "system", "irq", "softirq", "steal")
    return sum(
        getattr(times[core], field, 0.0) for core in cores if core < len(times) for field in fields
    )


def _tree(root: psutil.Process) -> list[psutil.Process]:
    return [root, *root.children(recursive=True)]


def _tree_cpu_seconds(root: psutil.Process) -> float:
    """Return the CPU time of a process, its descendants, and the children it waited for."""
    total_seconds = 0.0
    for process in _tree(root):
        with suppress(psutil.Error):  # it has ended, or belongs to another user
            total_seconds += sum(process.cpu_times()[:4])
    return total_seconds


def waited_for_core_seconds() -> dict[str, float]:
    """Return how long threads of this process waited for a core. Empty if the system has no count.

    https://docs.kernel.org/scheduler/sched-stats.html
    """
    files = Path("/proc/self/task").glob("*/schedstat")
    fields = {file.parent.name: read_or_empty(file).split() for file in files}
    return {thread: int(counters[1]) / 1e9 for thread, counters in fields.items() if counters}
