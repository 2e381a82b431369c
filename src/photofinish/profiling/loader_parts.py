"""Measure where a data loader spends its time, in one process after the training."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import count, islice
from typing import Any, TypeVar

import torch

from photofinish.custom.running import run_custom_code
from photofinish.errors import UserError
from photofinish.machine.host import allowed_cores, available_memory_bytes, cpu_facts
from photofinish.profiling.any_loader import (
    affordable,
    longest_first,
    not_measured,
    seconds_for,
    take_in_turns,
)
from photofinish.profiling.loader_tries import try_inputs
from photofinish.profiling.loader_workers import (
    limit_threads,
    may_fork,
    numbers_of_workers,
    timeout_for,
    try_workers,
    way_between_processes,
)
from photofinish.profiling.stopwatch import PACKED, REST, Stopwatch
from photofinish.profiling.taps import Taps
from photofinish.profiling.threads import restored_threads
from photofinish.results import passed_seconds
from photofinish.results.measurements import LoaderTimes, TriedWorkers
from photofinish.training.batches import Batch
from photofinish.training.input_paths import LoaderBatches
from photofinish.training.trainer import Trainer

_Result = TypeVar("_Result")
BETWEEN = "between processes"
_LEAST_WITH_WORKERS_SECONDS = 1.0
"""Minimum time for trying workers, which start slowly."""


def measure_loader(trainer: Trainer) -> LoaderTimes | None:
    """Measure a training's loader. Return None without a loader, or with several processes."""
    batches = trainer.training
    if not isinstance(batches, LoaderBatches) or trainer.team.size > 1:
        return None
    budget_seconds = seconds_for(passed_seconds(trainer.progress.timings))
    try:
        with run_custom_code("a part can't be timed"):
            with restored_threads():
                if batches.settings.workers:
                    torch.set_num_threads(1)  # as PyTorch does in a worker
                found = measure(batches, budget_seconds / 2, allowed_cores(cpu_facts()))
            if budget_seconds < _LEAST_WITH_WORKERS_SECONDS:
                return found
            seconds = budget_seconds / 2
            tried = _Tries(seconds)(try_inputs, trainer, found, seconds)
            return found.model_copy(update={"tried_inputs": tried or ()})
    except UserError as error:
        return not_measured(error)


def measure(batches: LoaderBatches, budget_seconds: float, cores: int) -> LoaderTimes:
    """Time the parts of loading, then try workers. Each gets half of the time."""
    most = min(batches.batch_size, batches.image_count)
    size = affordable(batches.dataset.__getitem__, (0, None, 0), most, budget_seconds / 2)
    found = take_apart(batches, size, budget_seconds / 2)
    if budget_seconds < _LEAST_WITH_WORKERS_SECONDS / 2:
        return found
    changed = _with_workers(batches, found, size, _Tries(budget_seconds), cores)
    return found.model_copy(update=changed)


def _with_workers(
    batches: LoaderBatches, found: LoaderTimes, size: int, attempt: _Tries, cores: int
) -> dict[str, Any]:
    """Return the fields of LoaderTimes that are measured with worker processes."""
    timeout_seconds = timeout_for(found.whole_seconds * size / batches.batch_size)
    settings = batches.settings
    again = batches, settings.workers, size, timeout_seconds
    changed: dict[str, Any] = {}
    if settings.workers and not settings.persistent_workers and may_fork():
        changed["by_fork"] = attempt(try_workers, *again, None, "fork")
    tried: list[TriedWorkers] = []
    for workers in numbers_of_workers(cores, settings.workers):
        worker_bytes = max(tried[-1].memory_bytes, default=0) if tried else 0
        if workers * worker_bytes > available_memory_bytes() / 2:
            break
        each = attempt(try_workers, batches, workers, size, timeout_seconds)
        if each is None:
            break
        tried.append(each)
    changed["tried_workers"] = tuple(tried)
    if not settings.workers or not tried:
        return changed
    between = attempt(way_between_processes, batches, size, timeout_seconds)
    if between is not None:  # else one process's parts are compared with its whole
        parts = longest_first(found.parts | {BETWEEN: between})
        changed |= {"parts": parts, "whole_seconds": tried[0].batch_seconds}
    own = [each for each in tried if each.workers == settings.workers]
    if own and max(own[0].busy_threads, default=1) > 1:
        changed["with_one_thread"] = attempt(try_workers, *again, limit_threads)
    return changed


class _Tries:
    """Other ways to load that are tried one by one, while there is time."""

    def __init__(self, seconds: float) -> None:
        self._ends_seconds, self._longest_seconds = time.perf_counter() + seconds, 0.0

    def __call__(self, load: Callable[..., _Result | None], *arguments: Any) -> _Result | None:
        """Return a measurement, or None without time for it. If it fails, print why."""
        began_seconds = time.perf_counter()
        if began_seconds + self._longest_seconds > self._ends_seconds:
            return None
        try:
            with run_custom_code("batches can't be loaded"):
                return load(*arguments)
        except UserError as error:
            reason = str(error).rpartition("\n")[2]
            print(f"note: another way to load batches is not tried: {reason}")
            return None
        finally:
            took_seconds = time.perf_counter() - began_seconds
            self._longest_seconds = max(self._longest_seconds, took_seconds)


def take_apart(batches: LoaderBatches, size: int, budget_seconds: float) -> LoaderTimes:
    """Load batches with each part timed and batches without, in turns."""
    timed, plain = (batches.with_workers(0, size) for _ in range(2))
    watch = Stopwatch(REST if timed.dataset.part.read else PACKED)
    with Taps(watch) as taps:
        taps.open_up(timed.dataset)
        # From different epochs, because files that were just read are in memory.
        return take_in_turns(
            watch, _endless(timed, 0), _endless(plain, 1), size, batches.batch_size, budget_seconds
        )


def _endless(batches: LoaderBatches, first_epoch: int) -> Iterator[Batch]:
    """Yield the whole batches of every second epoch."""
    whole = batches.image_count // batches.batch_size
    for epoch in count(first_epoch, 2):
        yield from islice(batches.host_batches(epoch), whole)
