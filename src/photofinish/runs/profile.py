"""Measurements of a trained network: steps timed and taken apart, operations, the first step."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from photofinish.profiling.attribution import (
    images_with_room,
    measure_steps,
    plan_attribution,
    plan_samples,
    profile_step,
)
from photofinish.profiling.first_step import first_batch, first_step
from photofinish.profiling.operations import count_operations
from photofinish.profiling.scratch import forget_optimizer
from photofinish.results import median_training_seconds, passed_seconds, records
from photofinish.results.measurements import Operations, SteadyState, StepBreakdown
from photofinish.runs.setup import Setup
from photofinish.training.trainer import Trainer

_BYTES_PER_VALUE = 4


class Profile(NamedTuple):
    """Fields of `records.Timings` that are measured after the training, on copies of the network."""

    steady_state: SteadyState
    attribution: StepBreakdown | None
    not_attributed: str | None
    operations: Operations | None
    not_counted: str | None


def profile(setup: Setup, trained: Trainer) -> Profile:
    """Measure the steps of a trained network. Every rank takes part."""
    forget_optimizer(trained)
    timings = trained.progress.timings
    step_seconds = median_training_seconds(timings) / trained.steps_per_epoch
    plan = setup.team.broadcast_object(plan_samples(step_seconds, passed_seconds(timings)))
    steady_state = measure_steps(trained, plan)
    attribution, not_attributed = _take_apart(setup, trained, step_seconds)
    operations, not_counted = _count_operations(setup, trained)
    return Profile(steady_state, attribution, not_attributed, operations, not_counted)


def record_first_step(setup: Setup, trained: Trainer) -> records.FirstStep | None:
    """Record the first step on a fresh network. Returns None on all ranks but 0."""
    batch = first_batch(setup.training, setup.team)
    if batch is None:
        return None
    experiment = setup.run.experiment
    labels = setup.split.labels("train")
    return first_step(
        setup.new_network(),
        trained.criterion,
        batch,
        setup.device,
        experiment.precision,
        labels,
        experiment.seed,
    )


def _take_apart(setup: Setup, trained: Trainer, step_seconds: float) -> tuple[StepBreakdown | None, str | None]:
    if setup.team.size > 1:
        return None, "several processes train together, and their steps end together"
    if setup.run.experiment.model.compile:
        return None, "the network is compiled into one piece"
    bytes_per_image = _BYTES_PER_VALUE * math.prod(setup.split.manifest.shape)
    training_seconds = passed_seconds(trained.progress.timings)
    most_images = images_with_room(setup.device, bytes_per_image)
    plan = plan_attribution(trained, step_seconds, training_seconds, most_images=most_images)
    try:
        return profile_step(trained, plan, setup.resident_batches()), None
    except torch.OutOfMemoryError:  # the training is done and must not be lost
        return None, "the device's memory is too small for more than the training"


def _count_operations(setup: Setup, trained: Trainer) -> tuple[Operations | None, str | None]:
    if setup.team.size > 1:
        return None, "several processes train together, each on a part of a batch"
    if setup.run.experiment.model.compile:
        return None, "the network is compiled, which hides its operations"
    try:
        return count_operations(trained), None
    except RuntimeError as error:  # custom networks may not run under a dispatch mode
        return None, f"counting the operations of a step fails ({str(error).splitlines()[0]})"
