"""One measurement: parts of a training, its first step, single steps, operations and loader.

It trains fresh weights and keeps none of them. Every rank runs this program; rank 0 writes.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from photofinish.config.precisions import PRECISIONS
from photofinish.files import sha256_of_bytes
from photofinish.measure.attribution import Profile, attempt, profile
from photofinish.measure.first_step import first_batch, first_step
from photofinish.measure.loader_times import measure_loader
from photofinish.measure.loader_tries import RESIDENT, fits_resident
from photofinish.measure.operations import count_operations
from photofinish.measure.take_parts import second_step_seconds, take_parts
from photofinish.measure.threads import fp32_flops_a_second
from photofinish.results import TimedPart, records
from photofinish.results.learned import weights_of
from photofinish.results.measured import Measured
from photofinish.results.timed_parts import epoch_by_parts
from photofinish.runs.initial_record import JobClock, process_fields, training_record
from photofinish.runs.run import Run
from photofinish.runs.setup import Setup, torch_configured
from photofinish.tracking.client import NoTracker
from photofinish.training.batches import Batch, Batches, has_live_inputs
from photofinish.training.custom_step import step_with_a_loss
from photofinish.training.trainer import Trainer
from photofinish.training.world import World
from photofinish.wording import seconds

_JOB_SHARE = 0.2
"""Largest share of a job's time that measuring takes, by hand."""
_LEAST_SECONDS = 1.5
"""Shortest measurement, by hand: a job of one epoch says enough about the same job with more."""
_PARTS_SHARE = 0.5
"""Share of that time for timed parts of the training, by hand."""
_SLOW_STEPS = 20
"""Number of steps that measuring single steps takes at least."""


def measure(
    run: Run,
    device: torch.device,
    team: World,
    most_seconds: float,
    epochs: int,
    waited_seconds: float,
) -> Measured | None:
    """Measure a job of so many epochs for about `most_seconds`. Return None on ranks but 0.

    A short job is measured for a fifth of its time. After the parts of the training, a measurement
    that fails is left out, because the training may well succeed. Of slow steps only the parts and
    a count are taken.
    """
    clock = JobClock(NoTracker(), waited_seconds)
    with torch_configured(run, device, team):
        setup = Setup(run, device, team)
        network = setup.new_network(clock.excluded)
        initial_weights_sha256 = sha256_of_bytes(weights_of(network))
        with clock.excluded():
            setup.check_custom_code(network)
        trainer = setup.new_trainer(network)
        with clock.excluded():
            warm_up = trainer.prepare()
            step_seconds = second_step_seconds(trainer)
        clock.include(warm_up.first_seconds)
        clock.startup_ended()
        job_seconds = epochs * trainer.steps_per_epoch * step_seconds
        job_seconds = min(max(job_seconds, _LEAST_SECONDS / _JOB_SHARE), most_seconds / _JOB_SHARE)
        load = setup.load_monitor()
        parts, validation_seconds = take_parts(
            trainer, step_seconds, _PARTS_SHARE * _JOB_SHARE * job_seconds, epochs
        )
        load.sample()
        peak_memory_bytes = team.peak_memory_bytes()
        epoch_steps = setup.training.image_count / setup.training.batch_size
        further = _further(setup, trainer, parts, epoch_steps, step_seconds, job_seconds)
        load.sample()
    if not team.is_main:
        return None
    return Measured(
        **process_fields(setup, trainer, clock),
        **further,
        job=run.name,
        device=run.device,
        training=training_record(setup, trainer, initial_weights_sha256),
        warm_up_seconds=warm_up.seconds,
        parts=parts,
        epoch_steps=epoch_steps,
        validation_step_seconds=validation_seconds / epoch_steps,
        peak_memory_bytes=peak_memory_bytes,
        load=tuple(load.windows),
    )


def _further(
    setup: Setup,
    trainer: Trainer,
    parts: tuple[TimedPart, ...],
    epoch_steps: float,
    step_seconds: float,
    job_seconds: float,
) -> dict[str, Any]:
    """Return the fields of Measured that need no further training: first step, steps and loader."""
    run, team = setup.run, setup.team
    trainer.forget_optimizer()
    batch, first, why_no_first = first_batch(setup.training, team), None, None
    if team.is_main:
        first, why_no_first = attempt(partial(_first_step, setup, trainer, batch))
    if _SLOW_STEPS * step_seconds > _JOB_SHARE * job_seconds:
        profiled = _profile_slow(trainer, job_seconds)
    else:
        profiled = _profile(trainer, parts, job_seconds)
    epoch_seconds = epoch_by_parts(parts, epoch_steps).seconds
    is_half = run.device == "cpu" and bool(PRECISIONS[run.experiment.precision].autocast)
    return {
        **profiled._asdict(),
        "loader": measure_loader(
            trainer, epoch_seconds, job_seconds, partial(resident_batches, setup)
        ),
        "fp32_flops_a_second": fp32_flops_a_second() if is_half and team.is_main else None,
        "first_step": first,
        "no_first_step": why_no_first,
    }


def _profile(trainer: Trainer, parts: tuple[TimedPart, ...], job_seconds: float) -> Profile:
    """Return the measurements of single steps, or why there are none."""
    step_seconds = sum(part.seconds for part in parts) / sum(part.steps for part in parts)
    take = partial(profile, trainer, step_seconds, job_seconds)
    # With several processes, a rank that fails alone would leave the others in a collective.
    profiled, why = (take(), None) if trainer.team.size > 1 else attempt(take)
    return profiled or Profile(None, None, why, None, why, {})


def _profile_slow(trainer: Trainer, job_seconds: float) -> Profile:
    """Return the counts of a slow step, whose parts would take too long to measure."""
    allowed = seconds(_JOB_SHARE * job_seconds)
    why = f"{_SLOW_STEPS} steps don't fit into the {allowed} set aside for measuring"
    if trainer.team.size > 1 or trainer.experiment.model.compile:
        return Profile(None, None, why, None, why, {})
    return Profile(None, None, why, *attempt(partial(count_operations, trainer)), {})


def resident_batches(setup: Setup) -> Batches | None:
    """Return resident batches for a training with a loader, or None if they do not fit."""
    experiment = setup.run.experiment
    given = experiment.input
    if given.name == "resident" or given.transform or given.eval_transform or given.collate:
        return None
    if has_live_inputs(setup.split):
        return None
    if not fits_resident(setup.split.images("train"), setup.training.image_count, setup.device):
        return None
    return setup.batches("train", experiment.model_copy(update={"input": RESIDENT}))


def _first_step(setup: Setup, trainer: Trainer, batch: Batch) -> records.FirstStep:
    experiment = setup.run.experiment
    loader = experiment.input
    return first_step(
        setup.new_network(),
        trainer.criterion,
        batch,
        setup.device,
        experiment.precision,
        setup.split.labels("train"),
        experiment.seed,
        step_with_a_loss(experiment),
        is_collated=loader.name == "loader" and loader.collate is not None,
    )
