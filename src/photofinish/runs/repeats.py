"""The same training again: repeats for its times, further seeds for its results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from photofinish.errors import UserError
from photofinish.files import sha256_of_bytes, write_bytes_atomically
from photofinish.profiling.scratch import warm_up
from photofinish.results import EpochTiming, records
from photofinish.results.learned import packed_weights, seed_weights, weights_of
from photofinish.runs.run import Run
from photofinish.runs.setup import Setup
from photofinish.runs.views import TrainingDisplay
from photofinish.training.checkpoint import CheckpointStore, State, on_cpu
from photofinish.training.trainer import NonFiniteLossError, Trainer, progress_in
from photofinish.training.world import World

Repeats = list[tuple[EpochTiming, ...]]
"""The epochs of each further training from the same start."""


def train_repeats(setup: Setup, first: Trainer, done: Repeats, on_epoch: Callable[[int, int], None]) -> Iterator[int]:
    """Train the missing repeats, add their epochs to `done`, and yield the number of each.

    `on_epoch` gets the number of the repeat and of the epoch, both from 1.
    """
    for number in range(len(done) + 2, setup.run.experiment.repeats + 1):
        again = setup.new_trainer()
        done.append(repeat_training(first, again, setup.run.name, number, partial(on_epoch, number)))
        yield number


def repeat_training(
    first: Trainer, again: Trainer, name: str, number: int, on_epoch: Callable[[int], None]
) -> tuple[EpochTiming, ...]:
    """Train `again` and return its epochs. Raises UserError if it learned something else."""
    first.steps.release()  # its graphs hold memory that this training needs
    warm_up(again)
    for metrics, _timing in again.epochs():
        on_epoch(metrics.epoch)
    if first.experiment.deterministic and (difference := _difference(first, again)):
        raise UserError(
            f"{name}, repeat {number}: it did not learn the same as the first time, from the same "
            f"start: {difference}. Times of different work cannot be compared. Something on this "
            f"device does not repeat bit for bit. repeats: 1 in params.yaml does without"
        )
    return tuple(again.progress.timings)


def _difference(first: Trainer, again: Trainer) -> str | None:
    for before, now in zip(first.progress.metrics, again.progress.metrics, strict=True):
        if before != now:
            losses = f"training loss {now.training_loss!r}, was {before.training_loss!r}"
            return f"from epoch {now.epoch} on ({losses})"
    if weights_of(first.network) == weights_of(again.network):
        return None
    return "the weights differ at the end, though no epoch's figures do"


def train_further_seeds(run: Run, device: torch.device, team: World, checkpoints: Path) -> dict[int, State]:
    """Train each seed after the experiment's own, and return what its trainer ended with."""
    states = {}
    for seed in range(run.experiment.seed + 1, run.experiment.seed + run.experiment.seeds):
        alone = {"seed": seed, "seeds": 1, "repeats": 1, "save_weights": "last"}
        experiment = run.experiment.model_copy(update=alone)
        store = CheckpointStore(checkpoints / f"seed-{seed}")
        states[seed] = _train_seed(Setup(replace(run, experiment=experiment), device, team), store)
    return states


def write_further_seeds(folder: Path, states: dict[int, State]) -> None:
    """Write the weights and the history of each further seed."""
    runs = []
    for seed, state in states.items():
        weights = packed_weights(state["network"])
        write_bytes_atomically(seed_weights(folder, seed), weights)
        history = tuple(progress_in(state).metrics)
        sha256 = sha256_of_bytes(weights)
        runs.append(records.SeedRun(seed=seed, weights_sha256=sha256, history=history))
    if runs:
        seeds = records.FurtherSeeds(runs=tuple(runs))
        records.write_record(folder / f"{records.SEEDS}.json", seeds)


def _train_seed(setup: Setup, store: CheckpointStore) -> State:
    run, team, experiment = setup.run, setup.team, setup.run.experiment
    is_main = team.rank == 0
    state: State | None = team.broadcast_object(store.load_latest() if is_main else None)
    if state and progress_in(state).epochs_done == experiment.epochs:
        return state
    trainer = setup.new_trainer()
    if state:
        trainer.load_state_dict(state)
    warm_up(trainer)
    display = TrainingDisplay(f"{run.name} on {run.device}, seed {experiment.seed}", trainer)
    try:
        with display if is_main else nullcontext():
            for metrics, timing in trainer.epochs():
                if is_main:
                    display.epoch_ended(metrics, timing)
                    if store.is_due() and metrics.epoch < experiment.epochs:
                        store.save(metrics.epoch, trainer.state_dict())
    except NonFiniteLossError as error:
        raise NonFiniteLossError(f"from seed {experiment.seed}, {error}") from error
    final: State = on_cpu(trainer.state_dict()) | {"optimizer": {}}  # no epoch is left that needs it
    if is_main:
        store.save(experiment.epochs, final)
    return final
