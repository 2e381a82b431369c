"""The same training again, from the same start, for its times alone: what it learns must be the same bit for bit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from photofinish.errors import UserError
from photofinish.files import sha256_of_bytes
from photofinish.measuring.attribution import attribute, images_with_room, plan_attribution
from photofinish.measuring.first_step import first_batch, first_step
from photofinish.measuring.steady_state import measure_steps, plan_samples
from photofinish.results.epochs import EpochMetrics, EpochTiming, median_training_seconds, passed_seconds
from photofinish.results.learned import weights_of
from photofinish.results.records import Attribution, FirstStep, SteadyState
from photofinish.runs.job import TrainingJob
from photofinish.training.checkpoint import State
from photofinish.training.trainer import Trainer


def repeat_training(
    first: Trainer, again: Trainer, name: str, number: int, on_epoch: Callable[[int], None]
) -> tuple[EpochTiming, ...]:
    """Train `again`, which has not begun, and hold it against `first`, which is done; the times of its epochs.

    `on_epoch` is told the epoch, from 1.
    """
    again.warm_up()
    done = again.train(lambda metrics, _timing: on_epoch(metrics.epoch))
    if difference := _difference(first, done.metrics, again):
        raise UserError(
            f"{name}, repeat {number}: it did not learn the same as the first time, from the same start: {difference}. "
            f"Times of different work can't be put together. Something on this device doesn't repeat bit for bit, "
            f"which is worth telling PyTorch's or photofinish's makers; repeats: 1 in params.yaml does without"
        )
    return tuple(done.timings)


def _difference(first: Trainer, metrics: list[EpochMetrics], again: Trainer) -> str | None:
    for before, now in zip(first.progress.metrics, metrics, strict=True):
        if before != now:
            return f"from epoch {now.epoch} on (training loss {now.training_loss!r}, was {before.training_loss!r})"
    same = sha256_of_bytes(weights_of(first.network)) == sha256_of_bytes(weights_of(again.network))
    return None if same else "the weights differ at the end, though no epoch's figures do"


_BYTES_A_VALUE = 4
Repeats = list[tuple[EpochTiming, ...]]


@dataclass(frozen=True)
class FurtherMeasurements:
    steady_state: SteadyState
    first_step: FirstStep | None
    """only in the process that leads"""
    attribution: Attribution | None
    not_attributed: str | None
    """why there is no attribution"""


def repeats_in(state: State) -> Repeats:
    """Those that were done when the checkpoint was written."""
    return [tuple(EpochTiming(**timing) for timing in timings) for timings in state["repeats"]]


def repeat(
    job: TrainingJob,
    first: Trainer,
    done: Repeats,
    on_epoch: Callable[[int, int], None] = lambda _repeat, _epoch: None,
    on_repeat: Callable[[int], None] = lambda _repeat: None,
) -> None:
    """Add to `done` the repeats that are wanted and not there yet, each told when it is."""
    for number in range(len(done) + 2, job.task.experiment.repeats + 1):

        def epoch_ended(epoch: int, number: int = number) -> None:
            on_epoch(number, epoch)

        done.append(repeat_training(first, job.new_trainer(), job.task.name, number, epoch_ended))
        on_repeat(number)


def measure_further(job: TrainingJob, trained: Trainer) -> FurtherMeasurements:
    """The training is over: no checkpoint is written of it any more."""
    trained.forget_optimizer()
    timings, experiment = trained.progress.timings, job.task.experiment
    step_seconds = median_training_seconds(timings) / trained.steps_per_epoch
    plan = job.team.from_leader(plan_samples(step_seconds, passed_seconds(timings)))
    steady_state = measure_steps(trained, job.clock, plan)
    attribution, why_not = _attribute(job, trained, step_seconds)
    batch, first = first_batch(job.training, job.team), None
    if batch is not None:
        labels = job.split.labels("train")
        first = first_step(job.new_network(), batch, job.device, experiment.precision, labels, experiment.seed)
    return FurtherMeasurements(steady_state, first, attribution, why_not)


def _attribute(job: TrainingJob, trained: Trainer, step_seconds: float) -> tuple[Attribution | None, str | None]:
    if job.team.size > 1:
        return None, "several processes train together: their steps end together, whichever part keeps one of them"
    settings = job.task.experiment.input
    workers = settings.workers if settings.name == "loader" else 0
    training_seconds = passed_seconds(trained.progress.timings)
    plan = plan_attribution(
        trained,
        step_seconds,
        training_seconds,
        most_images=images_with_room(job.device, _BYTES_A_VALUE * math.prod(job.split.manifest.shape)),
        workers=workers,
        devices=job.team.device_count,
    )
    try:
        return attribute(trained, job.clock, plan, resident_fits=job.task.resident_fits()), None
    except torch.OutOfMemoryError:  # a result is there, and not to be lost for want of its reasons
        return None, "the device's memory is too small for more than the training"
