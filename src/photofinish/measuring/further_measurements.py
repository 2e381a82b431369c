"""What is measured once a network is trained: the training again, single steps, and its first step layer by layer.

None of it is part of the job's time. Every process of a team takes part; only the first one's findings are kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from photofinish.measuring.attribution import attribute, images_with_room, plan_attribution
from photofinish.measuring.first_step import first_batch, first_step
from photofinish.measuring.repeats import repeat_training
from photofinish.measuring.steady_state import measure_steps, plan_samples
from photofinish.results.epochs import EpochTiming, median_training_seconds, passed_seconds
from photofinish.results.records import Attribution, FirstStep, SteadyState
from photofinish.training.checkpoint import State
from photofinish.training.job import TrainingJob
from photofinish.training.trainer import Trainer

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
