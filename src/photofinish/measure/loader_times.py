"""Time loading without steps: in this process, and by workers that start, load and end."""

from __future__ import annotations

import itertools
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from itertools import chain, islice
from typing import Any, TypeVar

import psutil
import torch

from photofinish.custom.running import run_custom_code
from photofinish.errors import UserError
from photofinish.inside.timed_batches import loaded, sample_lines, slowest_line
from photofinish.machine.host import available_memory_bytes
from photofinish.measure.in_turns import Budget, with_threads
from photofinish.results.measurements import LoaderTimes, TriedWorkers
from photofinish.training.input_paths import LoaderBatches

SAMPLES, _LEAST_BATCHES = 200, 4
"""Numbers of samples and batches, by hand."""
_MOST_SAMPLE_SECONDS = 1.25
"""Time of a sample, by hand, above which a few of them take too long."""
_ROUNDS = 4
"""Number of batches for each worker, by hand. The first batches are not timed."""
_LEAST_TIMEOUT_SECONDS = 0.1
LEAST_WITH_WORKERS_SECONDS = 1.0
"""Minimum time for trying workers, by hand: they start slowly."""
_Result = TypeVar("_Result")


def measure(batches: LoaderBatches, budget: Budget, ends_seconds: float, cores: int) -> LoaderTimes:
    """Time loading in this process, then try workers. Those that hang are given up at the end."""
    own = batches.settings.workers
    tried = list[TriedWorkers]()
    workers_to_try = set[int]()
    longest_seconds, most_bytes = 0.0, 0
    # As PyTorch does in a worker.
    with with_threads(1 if own else torch.get_num_threads()):
        seconds, dataset = budget.alone_seconds * 2 / 3, batches.dataset
        most = batches.batch_samples(0)
        size = affordable(lambda: dataset.collate([dataset[0, None, 0, 0]]), most, seconds)
        alone, count = batches.with_workers(0, size), batches.image_count // size
        load = chain.from_iterable(
            islice(alone.host_batches(epoch), count) for epoch in itertools.count()
        )
        whole_seconds = time_batches(load, size, seconds) * batches.batch_size / size
        samples = sample_lines(seconds / 2)
        time_batches(load, size, seconds / 2)  # untimed, as samples take time
        slow_line = slowest_line(samples)
        if budget.loader_seconds >= LEAST_WITH_WORKERS_SECONDS:
            workers_to_try = {2**power for power in range(cores.bit_length())} | {cores, own}
        late_seconds = time.perf_counter() + budget.workers_seconds
        for workers in sorted(workers_to_try - {0}):
            began_seconds = time.perf_counter()
            is_late = seconds_left(late_seconds) < longest_seconds
            if is_late or workers * most_bytes > available_memory_bytes() / 2:
                break
            taken = attempt_loading(partial(try_workers, batches, workers, size, ends_seconds))
            longest_seconds = max(longest_seconds, time.perf_counter() - began_seconds)
            if taken is None:
                break
            times, most_bytes = taken
            tried.append(times)
    return LoaderTimes(
        whole_seconds=tried[0].batch_seconds if own and tried else whole_seconds,
        tried_workers=tuple(tried),
        slow_line=slow_line,
    )


def affordable(load: Callable[[], Any], most: int, seconds: float) -> int:
    """Return how many samples of a batch there is time for, from 1 to `most`."""
    began_seconds = time.perf_counter()
    load()
    sample_seconds = time.perf_counter() - began_seconds
    if sample_seconds > _MOST_SAMPLE_SECONDS:
        raise TimeoutError(f"a sample takes {sample_seconds:.1f} s")
    return max(1, min(most, int(seconds / _LEAST_BATCHES / sample_seconds)))


def time_batches(batches: Iterator[Any], size: int, seconds: float) -> float:
    """Return the median time of a batch, so that one that waited for a core counts little."""
    next(batches)
    batch_seconds: list[float] = []
    began_at = ended_at = time.perf_counter()
    while len(batch_seconds) * size < SAMPLES:
        loaded(next, batches)
        batch_seconds.append(time.perf_counter() - ended_at)
        ended_at += batch_seconds[-1]
        if (ended_at - began_at) * (1 + 1 / len(batch_seconds)) > seconds:
            break
    return statistics.median(batch_seconds)


def seconds_left(ends_seconds: float) -> float:
    """Return the time until a deadline by `time.perf_counter`, or 0."""
    return max(0.0, ends_seconds - time.perf_counter())


def attempt_loading(measure: Callable[[], _Result | None]) -> _Result | None:
    """Return a measurement. If it fails, print why, and return None."""
    try:
        with run_custom_code("batches can't be loaded"):
            return measure()
    except UserError as error:
        reason = str(error).rpartition("\n")[2]
        print(f"note: another way to load batches was not tried: {reason}")
        return None


def try_workers(
    batches: LoaderBatches, workers: int, size: int, ends_seconds: float
) -> tuple[TriedWorkers, int] | None:
    """Load some batches of at most `size` samples. Return their times and a worker's own memory.

    Return None if an epoch has too few samples.
    """
    count = _ROUNDS * workers
    size = min(size, batches.image_count // count)
    if size == 0:
        return None
    others = _children()
    loader = batches.with_workers(workers, size, timeout=timeout_until(ends_seconds))
    with closing(loader.first_batches(count)) as loaded:
        ends = [time.perf_counter()]  # after the epoch's order, which no worker makes
        for _ in islice(loaded, count):  # not to their end, with which the workers end
            ends.append(time.perf_counter())
            if len(ends) <= count and not seconds_left(ends_seconds):
                raise UserError("workers load too slowly")
        processes = [psutil.Process(pid) for pid in _children() - others]
        most_bytes = max((process.memory_full_info().uss for process in processes), default=0)
        closing_seconds = time.perf_counter()
    first_seconds = ends[1] - ends[0] + time.perf_counter() - closing_seconds
    batch_seconds = (ends[count] - ends[workers]) / (count - workers)  # after the first round
    times = TriedWorkers(
        workers=workers,
        batch_seconds=batch_seconds * batches.batch_size / size,
        start_seconds=max(0.0, first_seconds - workers * batch_seconds),
    )
    return times, most_bytes


def timeout_until(ends_seconds: float) -> float:
    """Return how long to wait for a batch of workers, which may hang. 0 would be forever."""
    return max(_LEAST_TIMEOUT_SECONDS, seconds_left(ends_seconds))


def _children() -> set[int]:
    return {process.pid for process in multiprocessing.active_children() if process.pid}
