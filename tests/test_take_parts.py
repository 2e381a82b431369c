"""Parts of a training that `measure` times, on a held clock, and figures of planted timelines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from conftest import HeldClock, MakeTrainer
from torch import nn
from watched_scripts import block, figures_of, process_of

from photofinish.config.experiment import step_settings
from photofinish.inside.recorder import VALIDATES
from photofinish.measure.take_parts import second_step_seconds, take_parts
from photofinish.results import TimedPart
from photofinish.results.measured import EpochByParts, epoch_by_parts
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
    expected = {"epoch"} if most_seconds > 100 else {"start", "steps"}
    assert {part.holds for part in parts} == expected
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


# -- planted timelines: blocks of a script's steps, and parts of an experiment ----------

Blocks = list[dict[str, Any]]
OWN, OTHER = {"loader": 0, "batches": 1}, {"loader": 1, "batches": 1}
NEW, NEW_OTHER = OWN | {"began_loader": 0}, OTHER | {"began_loader": 1}
EPOCH = [NEW, *[OWN] * 19]
STARTED = NEW | {"seconds": 5.0, "waiting_seconds": 4.0}
VALIDATION = NEW_OTHER | {"steps": [0], "flags": VALIDATES, "seconds": 2.0}
ANOTHER = VALIDATION | {"loader": 2, "began_loader": 2}
VALIDATES_BY_OWN = {"loader": 0, "began_loader": 0, "flags": VALIDATES, "seconds": 2.0}
TRAINED = {"steps": 40, "loader": 0, "longest": 20, "batches": 1.0, "epoch": 20.0}
TRAINED |= {"once": 0.0, "waits": 0.0, "validation": 0.0}
"""What is usual: two epochs of 20 steps, each of a batch and 1 s."""
UNFED = {"loader": None, "longest": None, "batches": 0.0}
SCRIPTS: dict[str, tuple[Blocks, dict[str, Any]]] = {
    "a slow first epoch": ([each | {"seconds": 3.0} for each in EPOCH] + EPOCH, {"once": 40.0}),
    "workers that start in each epoch": (
        [STARTED, *[OWN] * 19] * 3, {"steps": 60, "epoch": 24.0, "waits": 4.0}),
    "validation between epochs": (
        [*EPOCH, VALIDATION] * 3, {"steps": 60, "validation": 2.0}),
    "validation over two loaders": (
        [*EPOCH, VALIDATION, ANOTHER] * 3, {"steps": 60, "validation": 4.0}),
    "validation with the first step": (
        [{}, {"flags": VALIDATES, "seconds": 4.0}, *[{}] * 498],
        {"steps": 500, "validation": 0.12, **UNFED}),
    "accumulation": ([each | {"batches": 4} for each in EPOCH] * 2, {"batches": 4.0}),
    "two loaders in turn": (
        [NEW, *[OWN] * 9, NEW_OTHER, *[OTHER] * 8] * 3, {"steps": 57, "longest": 19}),
    "an epoch that the loop ends early": ([*EPOCH, NEW, *[OWN] * 9], {"steps": 30}),
    "two trainings one after the other": (
        [each | {"steps": steps} for steps in ([1, 0], [0, 1]) for each in EPOCH], {}),
    "no loader": ([{"making_seconds": 0.25}] * 40, {"waits": 5.0, **UNFED}),
    "no loader but the validation's": (
        [VALIDATES_BY_OWN, *[{}] * 20] * 3, {"steps": 63, "validation": 20 / 21, **UNFED}),
}  # fmt: skip


@pytest.mark.parametrize(("blocks", "changed"), SCRIPTS.values(), ids=list(SCRIPTS))
def test_the_figures_of_a_script_are_those_of_its_timeline(
    blocks: Blocks, changed: dict[str, Any]
) -> None:
    process, ended_at = process_of([]), 0.0
    process.add({"kind": "optimizer", "device": "cpu", "is_named": False})
    for sums in blocks:
        changed_sums = {"seconds": 1.0, "steps": [1]} | sums
        seconds, steps = changed_sums.pop("seconds"), changed_sums.pop("steps")
        line = block(ended_at, seconds, **changed_sums)
        process.add([*line[:2], steps, *line[3:]])
        ended_at += seconds
    figures = figures_of(process)
    epoch = epoch_by_parts(figures.parts, 20)
    truth = TRAINED | changed
    loader_and_longest = truth.pop("loader"), truth.pop("longest")
    assert (figures.loader, figures.longest_epoch_steps) == loader_and_longest
    assert {
        "steps": figures.steps,
        "batches": figures.batches_per_step,
        "epoch": epoch.seconds,
        "once": epoch.once_seconds,
        "waits": epoch.mean_waiting_seconds,
        "validation": 20 * figures.validation_step_seconds,
    } == pytest.approx(truth, rel=0.01)


@pytest.mark.parametrize(
    ("waiting_seconds", "device_seconds", "share"),
    [
        (0.006, None, None),
        (0.006, 0.004, 0.6),
        (0.006, 0.010, 0.0),  # the device computes while the host loads
        (0.002, 0.0001, 0.2),  # it computes on another stream
    ],
)
def test_a_script_waits_for_batches_while_the_device_has_nothing_to_compute(
    waiting_seconds: float, device_seconds: float | None, share: float | None
) -> None:
    sums = {"batches": 1, "loader": 0, "waiting_seconds": waiting_seconds}
    if device_seconds is not None:
        sums |= {"device_seconds": device_seconds, "device_steps": 1}
    process = process_of([0.01] * 100, "cuda", **sums)
    process.add({"kind": "loader", "loader": 0, "batches": None, "workers": 2, "is_named": False})
    assert figures_of(process).waiting_share == (share if share is None else pytest.approx(share))


def part(seconds: float, epoch: int = 0, holds: Any = "steps", *more: float) -> TimedPart:
    return TimedPart(seconds, 1.0, epoch, holds, *more)


EXPERIMENTS: dict[str, tuple[list[TimedPart], EpochByParts]] = {
    "a start, which counts once": (
        [part(6.0, 0, "start"), part(0.5), part(1.5)], EpochByParts(15.0, (10.0, 20.0), (), 0.0)),
    "workers that start, and a checkpoint": (
        [part(6.0, 0, "start", 3.25), part(1.0, 0, "steps", 0.25)],
        EpochByParts(15.0, (15.0,), (5.5,), 0.0, 2.0, 5.5)),
    "a slow first epoch": (
        [part(3.0), *[part(1.0, 1)] * 3], EpochByParts(10.0, (10.0,) * 3, (), 20.0)),
    "a slow first epoch, and too few later parts": (
        [part(4.0), *[part(1.0, 1)] * 2], EpochByParts(20.0, (40.0, 10.0, 10.0), (), 0.0)),
}  # fmt: skip


@pytest.mark.parametrize(("parts", "epoch"), EXPERIMENTS.values(), ids=list(EXPERIMENTS))
def test_an_epoch_of_ten_steps_is_that_of_its_parts(
    parts: list[TimedPart], epoch: EpochByParts
) -> None:
    assert epoch_by_parts(parts, 10.0) == epoch
