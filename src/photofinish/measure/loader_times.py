"""Measure a training's loader: a batch's time, its workers, and other inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice

import torch

from photofinish.inside.loader_time import affordable, seconds_for, time_batches
from photofinish.machine.host import allowed_cores, cpu_facts
from photofinish.measure.loader_tries import try_inputs
from photofinish.measure.loader_workers import (
    LEAST_WITH_WORKERS_SECONDS,
    Budget,
    attempt,
    measure_workers,
)
from photofinish.measure.threads import restored_threads
from photofinish.results.measurements import LoaderTimes
from photofinish.training.batches import Batch, Batches
from photofinish.training.input_paths import LoaderBatches
from photofinish.training.trainer import Trainer

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
    with restored_threads():
        if batches.settings.workers:
            torch.set_num_threads(1)  # as PyTorch does in a worker
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
