"""Measure a training's loader: a batch's time, its workers, and other inputs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, count, islice
from typing import Any

import torch

from photofinish.machine.host import allowed_cores, cpu_facts
from photofinish.measure.loader_tries import try_inputs
from photofinish.measure.loader_workers import (
    LEAST_WITH_WORKERS_SECONDS,
    Budget,
    attempt,
    measure_workers,
)
from photofinish.measure.threads import with_threads
from photofinish.results.measurements import LoaderTimes
from photofinish.training.batches import Batch, Batches
from photofinish.training.input_paths import LoaderBatches
from photofinish.training.trainer import Trainer

SAMPLES, _LEAST_BATCHES = 200, 4
_SHARE, _LEAST_SECONDS, _MOST_SECONDS = 0.1, 0.5, 10.0
"""Share of a training's time that measuring may take, with its lower and upper limit.

By hand, as are the numbers of samples and batches.
"""
_ALONE_SHARE = 0.25
"""Share of the time for loading in this process, by hand. Workers get half of the rest."""


def measure_loader(
    trainer: Trainer,
    epoch_seconds: float,
    training_seconds: float,
    resident_batches: Callable[[], Batches | None],
) -> LoaderTimes | None:
    """Measure a training's loader.

    Return None without a loader, with several processes, or if loading fails.
    `resident_batches` returns resident batches of the samples, or None if they don't fit.
    """
    batches = trainer.training
    if not isinstance(batches, LoaderBatches) or trainer.team.size > 1:
        return None
    budget = Budget(seconds_for(training_seconds))
    found = attempt(lambda: measure(batches, budget, allowed_cores(cpu_facts())))
    if found is None:
        return None
    resident = attempt(resident_batches)  # now, as workers are tried with free memory
    tried = try_inputs(trainer, found, budget, epoch_seconds, resident)
    return found.model_copy(update={"tried_inputs": tried})


def measure(batches: LoaderBatches, budget: Budget, cores: int) -> LoaderTimes:
    """Time loading in this process, then try workers."""
    # As PyTorch does in a worker.
    with with_threads(1 if batches.settings.workers else torch.get_num_threads()):
        seconds, dataset = _ALONE_SHARE * budget.seconds, batches.dataset
        most = batches.batch_samples(0)
        size = affordable(lambda: dataset.collate([dataset[0, None, 0, 0]]), most, seconds)
        load = partial(_whole_batches, batches.with_workers(0, size))
        found = LoaderTimes.model_validate(time_batches(load, size, batches.batch_size, seconds))
        if budget.seconds < LEAST_WITH_WORKERS_SECONDS:
            return found
        return found.model_copy(update=measure_workers(batches, found, size, budget, cores))


def _whole_batches(batches: LoaderBatches, epoch: int) -> Iterator[Batch]:
    return islice(batches.host_batches(epoch), batches.image_count // batches.batch_size)


def seconds_for(training_seconds: float) -> float:
    """Return how long measuring a loader may take after a training."""
    return min(_MOST_SECONDS, max(_LEAST_SECONDS, _SHARE * training_seconds))


def affordable(load: Callable[[], Any], most: int, seconds: float) -> int:
    """Return how many samples of a batch there is time for, from 1 to `most`."""
    began_seconds = time.perf_counter()
    load()
    sample_seconds = time.perf_counter() - began_seconds
    if _LEAST_BATCHES * sample_seconds > _MOST_SECONDS / 2:
        raise TimeoutError(f"a sample takes {sample_seconds:.1f} s")
    return max(1, min(most, int(seconds / _LEAST_BATCHES / sample_seconds)))


def time_batches(
    load: Callable[[int], Iterator[Any]], size: int, batch_size: int, seconds: float
) -> dict[str, Any]:
    """Load batches of `size` samples, epoch by epoch, and return the time of `batch_size`.

    It is the median, so that a batch that waited for a core counts little.
    """
    batches = chain.from_iterable(map(load, count()))
    next(batches)
    batch_seconds: list[float] = []
    began_at = ended_at = time.perf_counter()
    while len(batch_seconds) * size < SAMPLES:
        next(batches)
        batch_seconds.append(time.perf_counter() - ended_at)
        ended_at += batch_seconds[-1]
        if (ended_at - began_at) * (1 + 1 / len(batch_seconds)) > seconds:
            break
    return {
        "samples": size * len(batch_seconds),
        "batch_size": batch_size,
        "whole_seconds": statistics.median(batch_seconds) * batch_size / size,
    }
