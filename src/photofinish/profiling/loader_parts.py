"""Measure where a data loader spends its time, in one process after the training."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count, islice
from typing import Any

import torch

from photofinish.custom.running import run_custom_code
from photofinish.errors import UserError
from photofinish.machine.host import allowed_cores, cpu_facts
from photofinish.profiling.loader_tries import try_inputs
from photofinish.profiling.loader_workers import (
    limit_threads,
    numbers_of_workers,
    try_workers,
    way_between_processes,
)
from photofinish.profiling.threads import restored_threads
from photofinish.results import passed_seconds
from photofinish.results.measurements import LoaderTimes
from photofinish.training.batches import Batch
from photofinish.training.input_paths import LoaderBatches
from photofinish.training.trainer import Trainer

BETWEEN = "between processes"
_SAMPLES, _LEAST_BATCHES = 200, 4
_SHARE, _LEAST_SECONDS, _MOST_SECONDS = 0.1, 0.5, 10.0
"""Share of the training's time that measuring may take, with its lower and upper limit."""
_LEAST_WITH_WORKERS_SECONDS = 1.0
"""Minimum time for trying workers, which start slowly."""


def measure_loader(trainer: Trainer) -> LoaderTimes | None:
    """Measure a training's loader. Return None without a loader, or with several processes."""
    batches = trainer.training
    if not isinstance(batches, LoaderBatches) or trainer.team.size > 1:
        return None
    training_seconds = passed_seconds(trainer.progress.timings)
    budget_seconds = min(_MOST_SECONDS, max(_LEAST_SECONDS, _SHARE * training_seconds))
    try:
        with run_custom_code("a part can't be timed"):
            with restored_threads():
                if batches.settings.workers:
                    torch.set_num_threads(1)  # as PyTorch does in a worker
                found = measure(batches, budget_seconds / 2, allowed_cores(cpu_facts()))
            if budget_seconds < _LEAST_WITH_WORKERS_SECONDS:
                return found
            tried = try_inputs(trainer, found, budget_seconds / 2)
            return found.model_copy(update={"tried_inputs": tried})
    except UserError as error:  # the training must not be lost
        reason = str(error).rpartition("\n")[2]
        return LoaderTimes(samples=0, not_measured=f"measuring it fails ({reason})")


def measure(batches: LoaderBatches, budget_seconds: float, cores: int) -> LoaderTimes:
    """Time the parts of loading, then try workers. Each gets half of the time."""
    began_seconds = time.perf_counter()
    batches.dataset[0, None, 0]
    sample_seconds = time.perf_counter() - began_seconds
    most = min(batches.batch_size, batches.image_count)
    size = max(1, min(most, int(budget_seconds / 2 / _LEAST_BATCHES / sample_seconds)))
    found = take_apart(batches, size, budget_seconds / 2)
    if budget_seconds < _LEAST_WITH_WORKERS_SECONDS / 2:
        return found
    tried, pass_seconds = [], 0.0
    for workers in numbers_of_workers(cores, batches.settings.workers):
        began_seconds = time.perf_counter()
        if each := try_workers(batches, workers, size):
            tried.append(each)
        pass_seconds = max(pass_seconds, time.perf_counter() - began_seconds)
        budget_seconds -= time.perf_counter() - began_seconds
        if budget_seconds < pass_seconds:
            break
    parts, whole_seconds = found.parts, found.whole_seconds
    if batches.settings.workers and tried:
        parts = parts | {BETWEEN: way_between_processes(batches, size)}
        whole_seconds = tried[0].batch_seconds
    own = [each for each in tried if each.workers == batches.settings.workers]
    with_one_thread = None
    if own and max(own[0].busy_threads, default=1) > 1:
        with_one_thread = try_workers(batches, own[0].workers, size, limit_threads)
    changed: dict[str, Any] = {"parts": _longest_first(parts), "whole_seconds": whole_seconds}
    changed |= {"tried_workers": tuple(tried), "with_one_thread": with_one_thread}
    return found.model_copy(update=changed)


def take_apart(batches: LoaderBatches, size: int, budget_seconds: float) -> LoaderTimes:
    """Load batches with each part timed and batches without, in turns."""
    # Imported here, so that other trainings do not import the code that reads data sets.
    from photofinish.profiling.taps import PACKED, REST, Stopwatch, Taps

    began_seconds = time.perf_counter()
    timed, plain = (batches.with_workers(0, size) for _ in range(2))
    base, taken = REST if timed.dataset.part.read else PACKED, 0
    watch, whole = Stopwatch(base), Stopwatch(base)
    with Taps(watch) as taps:
        taps.open_up(timed.dataset)
        # From different epochs, because files that were just read are in memory.
        timed_batches, plain_batches = _endless(timed, 0), _endless(plain, 1)
        next(timed_batches), next(plain_batches)
        for taken in count(1):
            with watch.running():
                next(timed_batches)
            with whole.running():
                next(plain_batches)
            passed = time.perf_counter() - began_seconds
            if taken * size >= _SAMPLES or passed * (taken + 1) / taken > budget_seconds:
                break
    scale = batches.batch_size / (size * taken)
    return LoaderTimes(
        samples=size * taken,
        batch_size=batches.batch_size,
        parts=_longest_first({name: scale * each for name, each in watch.seconds().items()}),
        whole_seconds=scale * sum(whole.seconds().values()),
    )


def _longest_first(parts: dict[str, float]) -> dict[str, float]:
    return dict(sorted(parts.items(), key=lambda part: -part[1]))


def _endless(batches: LoaderBatches, first_epoch: int) -> Iterator[Batch]:
    """Yield the whole batches of every second epoch."""
    whole = batches.image_count // batches.batch_size
    for epoch in count(first_epoch, 2):
        yield from islice(batches.host_batches(epoch), whole)
