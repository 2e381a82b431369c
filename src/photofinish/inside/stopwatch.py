"""Time of nested parts in one thread, without what it waits for a core."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

READING, DECODING, COLLATING = "opening and reading", "decoding", "collating"
PACKED, SEEDING, NORMALISING, REST = "the packed split", "seeding", "normalising", "the rest"
CHECKING, PINNING = "checking", "pinning"
_NEVER_WAITING = {SEEDING, CHECKING, NORMALISING}
"""Parts that only compute. If they wait, the machine held them up."""
_TRIED_SECTIONS = 1000
_LONG_WAIT_SECONDS = 1e-4
"""Wait that may have been for a core, which takes some microseconds to find out."""


class Stopwatch:
    """Stopwatch for nested parts in its own thread. A part's time excludes the parts inside it.

    Waiting for a core does not count. In parts of the data set, CPU time counts for the part, and
    waiting counts as READING.
    """

    def __init__(self, base: str) -> None:
        self.data_set_parts = {READING, DECODING, base}
        self._parts = [base]
        self._thread = threading.get_native_id()
        self._is_running = False
        self.cpu_seconds: dict[str, float] = defaultdict(float)
        self._waits: dict[str, float] = defaultdict(float)
        self._preempted_seconds = 0.0
        self._sections: Counter[str] = Counter()
        self._sections_inside: Counter[str] = Counter()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Time this block, which begins in the part `base`."""
        self._preempted_seconds = preempted_seconds(self._thread)
        self._is_running = True
        self._now_seconds, self._now_cpu_seconds = time.perf_counter(), time.thread_time()
        yield
        self._charge()
        self._is_running = False

    def begin(self, part: str) -> None:
        """Begin a part inside the current part."""
        if self._is_running and threading.get_native_id() == self._thread:
            self._charge()
            self._sections_inside[self._parts[-1]] += 1
            self._sections[part] += 1
            self._parts.append(part)

    def end(self) -> None:
        """End the current part."""
        if self._is_running and threading.get_native_id() == self._thread:
            self._charge()
            self._parts.pop()

    def _charge(self) -> None:
        now_seconds, now_cpu_seconds = time.perf_counter(), time.thread_time()
        cpu_seconds = now_cpu_seconds - self._now_cpu_seconds
        waited_seconds = now_seconds - self._now_seconds - cpu_seconds
        if waited_seconds > _LONG_WAIT_SECONDS:
            so_far_seconds = preempted_seconds(self._thread)
            waited_seconds -= so_far_seconds - self._preempted_seconds
            self._preempted_seconds = so_far_seconds
            now_seconds, now_cpu_seconds = time.perf_counter(), time.thread_time()
        part = self._parts[-1]
        self.cpu_seconds[part] += cpu_seconds
        self._waits[part] += waited_seconds
        self._now_seconds, self._now_cpu_seconds = now_seconds, now_cpu_seconds

    def seconds(self) -> dict[str, float]:
        """Return the time of each part, without the time that timing takes."""
        inside_seconds, around_seconds = _section_seconds()
        found: dict[str, float] = defaultdict(float)
        for part, cpu_seconds in self.cpu_seconds.items():
            overhead_seconds = self._sections[part] * inside_seconds
            overhead_seconds += self._sections_inside[part] * around_seconds
            found[part] += cpu_seconds - overhead_seconds
            if part in self.data_set_parts:
                found[READING] += self._waits[part]
            elif part not in _NEVER_WAITING:
                found[part] += self._waits[part]
        return {part: seconds for part, seconds in found.items() if seconds > 0}


def _section_seconds() -> tuple[float, float]:
    """Return the time that timing a section adds to the section, and to the part around it."""
    watch = Stopwatch("around")
    timed = Timed(watch, "inside", int)
    with watch.running():
        for _ in range(_TRIED_SECTIONS):
            timed()
    inside, around = (watch.cpu_seconds[part] / _TRIED_SECTIONS for part in ("inside", "around"))
    return inside, around


class Timed:
    """Timed callable, or data set with timed items. Otherwise it acts like the wrapped object."""

    def __init__(self, watch: Stopwatch, part: str, wrapped: Any) -> None:
        self.watch, self.part, self.wrapped = watch, part, wrapped

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._timed(self.wrapped, *arguments, **named)

    def __getitem__(self, row: Any) -> Any:
        return self._timed(self.wrapped.__getitem__, row)

    def _timed(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        self.watch.begin(self.part)
        try:
            return function(*arguments, **named)
        finally:
            self.watch.end()

    def __len__(self) -> int:
        return len(self.wrapped)

    def __bool__(self) -> bool:
        return bool(self.wrapped)  # as in `if self.transform:`, for which a length would do, too

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.wrapped, name)
        # DataLoader calls it for whole batches, if a data set has it and it is not None.
        return partial(self._timed, value) if name == "__getitems__" and value else value


def preempted_seconds(thread: int) -> float:
    """Return how long a thread of this process waited for a core, or 0 without a count.

    https://docs.kernel.org/scheduler/sched-stats.html
    """
    try:
        counters = Path(f"/proc/self/task/{thread}/schedstat").read_text(encoding="utf-8").split()
    except OSError:  # another system than Linux
        return 0.0
    return int(counters[1]) / 1e9 if counters else 0.0
