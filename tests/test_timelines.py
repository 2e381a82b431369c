"""Figures of planted timelines: blocks of a script's steps, and parts of an experiment."""

from __future__ import annotations

from typing import Any

import pytest
from watched_scripts import block, figures_of, process_of

from photofinish.inside.recorder import VALIDATES
from photofinish.results import TimedPart
from photofinish.results.timed_parts import EpochByParts, epoch_by_parts

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
