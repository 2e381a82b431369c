"""Further trainings of an experiment: repeats for its times, other seeds for its results."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

import torch

from photofinish.errors import UserError
from photofinish.files import sha256_of_bytes, write_bytes_atomically
from photofinish.machine.load import LoadMonitor
from photofinish.profiling.scratch import forget_optimizer
from photofinish.results import EpochTiming, passed_seconds, records
from photofinish.results.learned import packed_weights, seed_weights, weights_of
from photofinish.runs.job import Job
from photofinish.runs.run import Run
from photofinish.runs.setup import Setup
from photofinish.runs.views import TrainingDisplay
from photofinish.training.checkpoint import CheckpointStore, State, on_cpu
from photofinish.training.failures import NonFiniteLossError
from photofinish.training.state import progress_in
from photofinish.training.trainer import Trainer
from photofinish.training.world import World
from photofinish.wording import seconds


def train_repeats(
    setup: Setup, first: Trainer, job: Job, load: LoadMonitor, display: TrainingDisplay
) -> None:
    """Train the repeats that are missing. Save a checkpoint after the training and each repeat."""
    run, is_main = setup.run, setup.team.rank == 0
    count = run.experiment.repeats
    elapsed_seconds = job.elapsed_seconds()
    state = first.state_dict()
    state["optimizers"] = on_cpu(state["optimizers"])
    if is_main:
        job.save(state, elapsed_seconds)
    if count == 1:
        return
    forget_optimizer(first)  # makes room for a second training
    load.begin()
    for number in range(len(job.repeats) + 2, count + 1):
        if is_main:
            spent_seconds = elapsed_seconds + passed_seconds(chain(*job.repeats))
            run.costs.check(spent_seconds, run.title, f"repeat {number - 1}")
        again = setup.new_trainer()
        on_epoch = partial(load.epoch_ended, number)
        job.repeats.append(repeat_training(first, again, run.name, number, on_epoch))
        if is_main:
            job.save(state, elapsed_seconds)
            display.say(f"repeat {number} of {count}: {seconds(passed_seconds(job.repeats[-1]))}")
        load.training_ended()
        load.begin()


def repeat_training(
    first: Trainer, again: Trainer, name: str, number: int, on_epoch: Callable[[int], None]
) -> tuple[EpochTiming, ...]:
    """Train `again` and return its epochs. Raises UserError if it learned something else."""
    first.steps.release()  # its graphs hold memory that this training needs
    again.prepare()
    for metrics, _timing in again.epochs():
        on_epoch(metrics.epoch)
    if not first.experiment.deterministic:
        return tuple(again.progress.timings)
    pairs = zip(first.progress.metrics, again.progress.metrics, strict=True)
    differing = [before.epoch for before, now in pairs if before != now]
    if differing or weights_of(first.result) != weights_of(again.result):
        where = f"from epoch {differing[0]} on" if differing else "in its weights at the end"
        raise UserError(
            f"{name}, repeat {number}: it learned something else than the first time, {where}, so "
            f"its times can't be compared: something on this device does not repeat bit for bit. "
            f"repeats: 1 in params.yaml does without"
        )
    return tuple(again.progress.timings)


def train_further_seeds(
    run: Run, device: torch.device, team: World, checkpoints: Path, spent_seconds: float
) -> dict[int, State]:
    """Train each further seed, and return the result of its trainer.

    Rank 0 passes the `spent_seconds` of the trainings before, which count for the budget.
    """
    states: dict[int, State] = {}
    for seed in range(run.experiment.seed + 1, run.experiment.seed + run.experiment.seeds):
        alone = {"seed": seed, "seeds": 1, "repeats": 1, "save_weights": "last"}
        experiment = run.experiment.model_copy(update=alone)
        store = CheckpointStore(checkpoints / f"seed-{seed}")
        # No name is kept for its data, which lie on the device beside the next seed's otherwise.
        states[seed] = _train_seed(
            Setup(replace(run, experiment=experiment), device, team), store, spent_seconds
        )
        spent_seconds += passed_seconds(progress_in(states[seed]).timings)
    return states


def _train_seed(setup: Setup, store: CheckpointStore, spent_seconds: float) -> State:
    run, team, experiment = setup.run, setup.team, setup.run.experiment
    is_main = team.rank == 0
    state: State | None = team.broadcast_object(store.load_latest() if is_main else None)
    if state and not state["optimizers"]:  # it has ended, perhaps early
        return state
    trainer = setup.new_trainer()
    if state:
        trainer.load_state_dict(state)
    title, costs, progress = f"{run.title}, seed {experiment.seed}", run.costs, trainer.progress
    spent_seconds += passed_seconds(progress.timings)
    if is_main and trainer.epochs_left():
        costs.check(spent_seconds, title, f"epoch {progress.epochs_done}")
    trainer.prepare()
    display = TrainingDisplay(title, trainer)
    try:
        with display if is_main else nullcontext():
            for metrics, timing in trainer.epochs():
                if is_main:
                    spent_seconds += passed_seconds([timing])
                    display.epoch_ended(metrics, timing, costs.so_far(spent_seconds))
                    if trainer.epochs_left():
                        if store.is_due() or costs.reach_budget(spent_seconds):
                            store.save(metrics.epoch, trainer.state_dict())
                        costs.check(spent_seconds, title, f"epoch {metrics.epoch}")
    except NonFiniteLossError as error:
        raise NonFiniteLossError(f"from seed {experiment.seed}, {error}") from error
    state = on_cpu(trainer.state_dict())
    state["optimizers"] = []  # no epoch is left that needs it
    if is_main:
        store.save(experiment.epochs, state)
    return state


def write_further_seeds(folder: Path, states: dict[int, State]) -> None:
    runs = []
    for seed, state in states.items():
        weights = packed_weights(state["average"] or state["network"])
        write_bytes_atomically(seed_weights(folder, seed), weights)
        history = tuple(progress_in(state).metrics)
        sha256 = sha256_of_bytes(weights)
        runs.append(records.SeedRun(seed=seed, weights_sha256=sha256, history=history))
    if runs:
        seeds = records.FurtherSeeds(runs=tuple(runs))
        records.write_record(folder / f"{records.SEEDS}.json", seeds)
