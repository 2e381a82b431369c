"""Parts of a training that `measure` times, on a held clock."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from conftest import HeldClock, MakeTrainer
from torch import nn

from photofinish.config.experiment import step_settings
from photofinish.measure.take_parts import second_step_seconds, take_parts
from photofinish.results.timed_parts import epoch_by_parts
from photofinish.training.batches import Batch
from photofinish.training.trainer import Trainer

START_SECONDS, STEP_SECONDS, VALIDATION_SECONDS = 3.0, 0.5, 0.25
COMPUTING_SECONDS = 0.125
"""Time of a step without loading its batch."""
STEPS = 4.5
"""Steps of an epoch of 72 samples in batches of 16."""


@pytest.fixture
def slow_start(trainer_of: MakeTrainer, clock: HeldClock) -> Trainer:
    """Return a trainer whose loader starts slowly in each epoch."""
    trainer = trainer_of(input={"name": "loader"}, batch_size=16)
    load, validate = trainer.training.train_batches, trainer.validator.evaluate

    def slowly(epoch: int, at_once: int = 1) -> Iterator[Batch]:
        for number, batch in enumerate(load(epoch, at_once)):
            loading_seconds = (STEP_SECONDS - COMPUTING_SECONDS) * len(batch[1]) / 16
            clock.take((0.0 if number else START_SECONDS) + loading_seconds)
            yield batch

    def compute(network: nn.Module, inputs: tuple[torch.Tensor]) -> None:
        clock.take(COMPUTING_SECONDS * len(inputs[0]) / 16 if network.training else 0.0)

    def evaluate(*arguments: Any) -> Any:
        clock.take(VALIDATION_SECONDS)
        return validate(*arguments)

    trainer.network.register_forward_pre_hook(compute)
    trainer.training.train_batches = slowly  # type: ignore[method-assign]
    trainer.validator.evaluate = evaluate  # type: ignore[method-assign]
    return trainer


@pytest.mark.parametrize("most_seconds", [1e-9, 5.0, 500.0])
def test_an_epoch_by_parts_takes_its_start_and_its_smaller_last_batch(
    slow_start: Trainer, most_seconds: float
) -> None:
    assert second_step_seconds(slow_start) == STEP_SECONDS
    parts, validation_seconds = take_parts(slow_start, STEP_SECONDS, most_seconds, epochs=100)
    assert len(parts) >= 2
    assert {part.holds for part in parts} == (
        {"epoch"} if most_seconds > 100 else {"start", "steps"}
    )
    assert epoch_by_parts(parts, STEPS).seconds == pytest.approx(START_SECONDS + 4.5 * STEP_SECONDS)
    for part in parts:
        assert part.waiting_seconds == part.seconds - COMPUTING_SECONDS * part.steps
    assert VALIDATION_SECONDS <= validation_seconds <= 2 * VALIDATION_SECONDS


def test_a_job_of_few_epochs_is_measured_to_its_end_and_no_further(slow_start: Trainer) -> None:
    parts, _ = take_parts(slow_start, STEP_SECONDS, 500.0, epochs=2)
    assert sum(part.steps for part in parts) == 2 * STEPS
    assert [part.epoch for part in parts if part.holds == "start"] == [0, 1]


def test_steps_that_the_schedule_keeps_from_capture_are_measured_uncaptured(
    make_experiment: Any,
) -> None:
    schedule = {"name": "one_cycle", "max_lr": 0.1, "cycle_momentum": True}
    assert step_settings(make_experiment(schedule=schedule)).cuda_graphs == "off"
    assert step_settings(make_experiment()).cuda_graphs == "auto"


def test_the_end_of_a_loader_is_in_no_part_of_an_epoch(
    slow_start: Trainer, clock: HeldClock
) -> None:
    load = slow_start.training.train_batches

    def end_slowly(epoch: int, at_once: int = 1) -> Iterator[Batch]:
        yield from load(epoch, at_once)
        clock.take(100.0)

    slow_start.training.train_batches = end_slowly  # type: ignore[method-assign]
    steady = [part.timed for part in slow_start.parts(0, 3) if part.timed.holds == "steps"]
    assert [part.steps for part in steady] == [3, 0.5]
    assert all(part.seconds == part.steps * STEP_SECONDS for part in steady)
