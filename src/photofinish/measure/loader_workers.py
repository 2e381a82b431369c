"""Time how a data loader's worker processes start, load, end and share the cores."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from typing import Any, TypeVar

import psutil

from photofinish.custom.running import run_custom_code
from photofinish.errors import UserError
from photofinish.machine.host import available_memory_bytes
from photofinish.results.measurements import LoaderTimes, TriedWorkers
from photofinish.training.input_paths import LoaderBatches

_Result = TypeVar("_Result")
_ROUNDS = 4
"""Number of batches for each worker, by hand. The first batches are not timed."""
_LEAST_TIMEOUT_SECONDS = 0.1
LEAST_WITH_WORKERS_SECONDS = 1.0
"""Minimum time for trying workers, by hand: they start slowly."""


class Budget:
    """Time for all measurements of a loader."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._ends_seconds = time.perf_counter() + seconds

    @property
    def left_seconds(self) -> float:
        return max(0.0, self._ends_seconds - time.perf_counter())


def attempt(measure: Callable[[], _Result | None]) -> _Result | None:
    """Return a measurement. If it fails, print why, and return None."""
    try:
        with run_custom_code("batches can't be loaded"):
            return measure()
    except UserError as error:
        reason = str(error).rpartition("\n")[2]
        print(f"note: another way to load batches was not tried: {reason}")
        return None


def measure_workers(
    batches: LoaderBatches, found: LoaderTimes, size: int, budget: Budget, cores: int
) -> dict[str, Any]:
    """Return the fields of LoaderTimes that need workers. Leave half of the time."""
    own, keep_seconds, longest_seconds = batches.settings.workers, budget.left_seconds / 2, 0.0
    tried: list[TriedWorkers] = []
    for workers in sorted({2**power for power in range(cores.bit_length())} | {cores, own} - {0}):
        worker_bytes = max(tried[-1].memory_bytes, default=0) if tried else 0
        began_seconds = budget.left_seconds
        is_late = began_seconds < keep_seconds + longest_seconds
        if is_late or workers * worker_bytes > available_memory_bytes() / 2:
            break
        each = attempt(partial(try_workers, batches, workers, size, budget))
        longest_seconds = max(longest_seconds, began_seconds - budget.left_seconds)
        if each is None:
            break
        tried.append(each)
    whole_seconds = tried[0].batch_seconds if own and tried else found.whole_seconds
    return {"tried_workers": tuple(tried), "whole_seconds": whole_seconds}


def try_workers(
    batches: LoaderBatches, workers: int, size: int, budget: Budget
) -> TriedWorkers | None:
    """Load some batches of at most `size` samples. Return None if an epoch has too few samples."""
    count = _ROUNDS * workers
    size = min(size, batches.image_count // count)
    if size == 0:
        return None
    others = _children()
    loader = batches.with_workers(workers, size, timeout=timeout_of(budget))
    with closing(loader.first_batches(count)) as loaded:
        first_seconds, batch_seconds = _time_batches(_in_time(loaded, budget), workers, count)
        processes = [psutil.Process(pid) for pid in _children() - others]
        cpu_seconds = tuple(sum(process.cpu_times()[:2]) for process in processes)
        memory_bytes = tuple(process.memory_full_info().uss for process in processes)
        ends_seconds = time.perf_counter()
    first_seconds += time.perf_counter() - ends_seconds
    return TriedWorkers(
        workers=workers,
        batch_seconds=batch_seconds * batches.batch_size / size,
        start_seconds=max(0.0, first_seconds - workers * batch_seconds),
        cpu_seconds=cpu_seconds,
        memory_bytes=memory_bytes,
    )


def timeout_of(budget: Budget) -> float:
    """Return how long to wait for a batch of workers, which may hang. 0 would be forever."""
    return max(_LEAST_TIMEOUT_SECONDS, budget.left_seconds)


def _in_time(loaded: Iterable[Any], budget: Budget) -> Iterator[Any]:
    for batch in loaded:
        yield batch
        if not budget.left_seconds:
            raise UserError("workers load too slowly")


def _time_batches(loaded: Iterator[Any], workers: int, count: int) -> tuple[float, float]:
    """Return the time to the first batch, and the mean time of a batch after the first round."""
    began_seconds = time.perf_counter()
    next(loaded)
    first_seconds = time.perf_counter() - began_seconds
    for _ in range(workers - 1):
        next(loaded)
    began_seconds = time.perf_counter()
    for _ in range(count - workers):
        next(loaded)
    return first_seconds, (time.perf_counter() - began_seconds) / (count - workers)


def _children() -> set[int]:
    return {process.pid for process in multiprocessing.active_children() if process.pid}
