"""Measure a training's loader: its parts, its workers, and other inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, cast

import torch

from photofinish.custom.running import run_custom_code
from photofinish.errors import UserError
from photofinish.inside.loader_parts import affordable, seconds_for, take_in_turns
from photofinish.inside.stopwatch import (
    CHECKING,
    COLLATING,
    NORMALISING,
    PACKED,
    REST,
    SEEDING,
    Stopwatch,
    Timed,
)
from photofinish.inside.taps import Taps
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
from photofinish.training.loading import LoadedSamples
from photofinish.training.trainer import Trainer

_PARTS_SHARE = 0.25
"""Share of the time for the parts, by hand. Workers get half of the rest."""


def measure_loader(
    trainer: Trainer,
    epoch_seconds: float,
    training_seconds: float,
    resident_batches: Callable[[], Batches | None],
) -> LoaderTimes | None:
    """Measure a training's loader. Return None without a loader, or with several processes.

    `resident_batches` returns resident batches of the samples, or None if they don't fit.
    """
    batches = trainer.training
    if not isinstance(batches, LoaderBatches) or trainer.team.size > 1:
        return None
    budget = Budget(seconds_for(training_seconds))
    try:
        with run_custom_code("a part can't be timed"):
            found = measure(batches, budget, allowed_cores(cpu_facts()))
    except UserError as error:
        reason = str(error).rpartition("\n")[2]
        return LoaderTimes(samples=0, not_measured=f"measuring it fails ({reason})")
    resident = attempt(resident_batches)  # now, as workers are tried with free memory
    tried = try_inputs(trainer, found, budget, epoch_seconds, resident)
    return found.model_copy(update={"tried_inputs": tried})


def measure(batches: LoaderBatches, budget: Budget, cores: int) -> LoaderTimes:
    """Time the parts of loading, then try workers."""
    with restored_threads():
        if batches.settings.workers:
            torch.set_num_threads(1)  # as PyTorch does in a worker
        seconds, dataset = _PARTS_SHARE * budget.seconds, batches.dataset
        most = batches.batch_samples(0)
        size = affordable(lambda: dataset.collate([dataset[0, None, 0, 0]]), most, seconds)
        found = take_apart(batches, size, seconds)
        if budget.seconds < LEAST_WITH_WORKERS_SECONDS:
            return found
        return found.model_copy(update=measure_workers(batches, found, size, budget, cores))


def take_apart(batches: LoaderBatches, size: int, seconds: float) -> LoaderTimes:
    """Load batches with each part timed and batches without, in turns."""
    timed, plain = (batches.with_workers(0, size) for _ in range(2))
    watch = Stopwatch(REST if timed.dataset.part.read else PACKED)
    with Taps(watch) as taps:
        _open_up(taps, watch, timed.dataset)
        passes = partial(_whole_batches, timed), partial(_whole_batches, plain)
        found = take_in_turns(watch, *passes, size, batches.batch_size, seconds)
    return LoaderTimes.model_validate(found)


def _open_up(taps: Taps, watch: Stopwatch, samples: LoadedSamples) -> None:
    """Time all parts of a loader's samples."""
    part = samples.part
    normalise: Any = Timed(watch, NORMALISING, part.normalise)
    samples.part = replace(part, normalise=normalise)
    if read := cast(Any, part.read):
        taps.put(read, "dataset", taps.timed_data_set(read.dataset))
        samples.part = replace(samples.part, read=Timed(watch, CHECKING, read))
        taps.put(samples, "read", Timed(watch, SEEDING, samples.read))
    taps.put(samples, "make_batch", Timed(watch, COLLATING, samples.make_batch))
    if transform := samples.transform:
        taps.put(transform, "function", taps.timed(transform.function))
        taps.put(samples, "transform", Timed(watch, SEEDING, transform))


def _whole_batches(batches: LoaderBatches, epoch: int) -> Iterator[Batch]:
    return islice(batches.host_batches(epoch), batches.image_count // batches.batch_size)
