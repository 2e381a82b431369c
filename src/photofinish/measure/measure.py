"""One measurement: parts of a training, its first step, single steps, operations and loader.

It trains fresh weights and keeps none of them. Every rank runs this program; rank 0 writes.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from photofinish.config.precisions import PRECISIONS
from photofinish.files import sha256_of_bytes
from photofinish.measure.attribution import attempt, operation_fields, profile
from photofinish.measure.first_step import first_batch, first_step
from photofinish.measure.in_turns import Budget
from photofinish.measure.loader_tries import measure_loader
from photofinish.measure.operations import fp32_flops_a_second
from photofinish.measure.take_parts import second_step_seconds, take_parts
from photofinish.results import TimedPart
from photofinish.results.learned import weights_of
from photofinish.results.measured import Measured, epoch_by_parts
from photofinish.runs.run import Run
from photofinish.runs.setup import (
    JobClock,
    Setup,
    process_fields,
    torch_configured,
    training_record,
)
from photofinish.tracking.client import NoTracker
from photofinish.training.losses import step_with_a_loss
from photofinish.training.torch_device import CPU
from photofinish.training.trainer import Trainer
from photofinish.training.world import World
from photofinish.wording import seconds

_SLOW_STEPS = 20
"""Least number of steps that measuring single steps takes, by hand. Fewer show no cause."""


def measure(
    run: Run, team: World, most_seconds: float | None, epochs: int, waited_seconds: float
) -> Measured | None:
    """Measure a job of so many epochs, for about `most_seconds`. Return None on ranks but 0.

    After the parts of the training, a measurement that fails is left out, because the training may
    well succeed. Of slow steps only the parts and a count are taken.
    """
    clock = JobClock(NoTracker(), waited_seconds)
    with torch_configured(run, team):
        setup = Setup(run, team)
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
        in_one_block = setup.device == CPU and team.size == 1
        budget = Budget.of(job_seconds, most_seconds, in_one_block=in_one_block)
        load = setup.load_monitor()
        parts, validation_seconds = take_parts(trainer, step_seconds, budget.parts_seconds, epochs)
        load.sample()
        peak_memory_bytes = team.peak_memory_bytes()
        epoch_steps = setup.training.image_count / setup.training.batch_size
        trainer.forget_optimizer()
        batch, experiment = first_batch(setup.training, team), run.experiment
        first, why_no_first = None, None
        if team.is_main:
            first, why_no_first = attempt(
                lambda: first_step(
                    setup.new_network(),
                    trainer.criterion,
                    batch,
                    setup.device,
                    experiment.precision,
                    setup.split.labels("train"),
                    experiment.seed,
                    step_with_a_loss(experiment),
                    is_collated=getattr(experiment.input, "collate", None) is not None,
                )
            )
        steps = _profile(trainer, parts, step_seconds, budget)
        epoch_seconds = epoch_by_parts(parts, epoch_steps).seconds
        loader = measure_loader(trainer, epoch_seconds, budget)
        is_half = run.device == "cpu" and bool(PRECISIONS[experiment.precision].autocast)
        fp32_rate = fp32_flops_a_second() if is_half and team.is_main else None
        load.sample()
    if not team.is_main:
        return None
    return Measured(
        **process_fields(setup, clock),
        **steps,
        loader=loader,
        fp32_flops_a_second=fp32_rate,
        first_step=first,
        no_first_step=why_no_first,
        job=run.name,
        device=run.device,
        training=training_record(setup, trainer, initial_weights_sha256),
        parts=parts,
        epoch_steps=epoch_steps,
        validation_step_seconds=validation_seconds / epoch_steps,
        peak_memory_bytes=peak_memory_bytes,
        load=tuple(load.windows),
    )


def _profile(
    trainer: Trainer, parts: tuple[TimedPart, ...], step_seconds: float, budget: Budget
) -> dict[str, Any]:
    """Return the measurements of single steps, or why there are none. Slow steps are counted."""
    is_alone = trainer.team.size == 1
    if _SLOW_STEPS * step_seconds > budget.whole_seconds:
        allowed = seconds(budget.whole_seconds)
        why: str | None = (
            f"{_SLOW_STEPS} steps don't fit into the {allowed} set aside for measuring"
        )
        if is_alone and not trainer.experiment.model.compile:
            return {"not_attributed": why} | operation_fields(trainer)
        return {"not_attributed": why, "not_counted": why}
    computing_seconds = sum(part.seconds - (part.waiting_seconds or 0.0) for part in parts)
    step_seconds = computing_seconds / sum(part.steps for part in parts)
    take = partial(profile, trainer, step_seconds, budget)
    # With several processes, a rank that fails alone would leave the others in a collective.
    profiled, why = attempt(take) if is_alone else (take(), None)
    return profiled or {"not_attributed": why, "not_counted": why}
