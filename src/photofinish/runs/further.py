"""Further trainings of an experiment: repeats for its times, other seeds for its results."""

from __future__ import annotations

from dataclasses import replace

import torch

from photofinish.errors import UserError
from photofinish.files import sha256_of_bytes, write_bytes_atomically
from photofinish.machine.load import LoadMonitor
from photofinish.results import EpochTiming, passed_seconds, records
from photofinish.results.learned import seed_weights, weights_of
from photofinish.runs.run import Run
from photofinish.runs.setup import Setup
from photofinish.runs.training import Training
from photofinish.training.failures import NonFiniteLossError
from photofinish.training.trainer import Trainer
from photofinish.training.world import World

Epochs = tuple[EpochTiming, ...]


def train_repeats(first: Training, monitor: LoadMonitor) -> tuple[Epochs, ...]:
    repeats: list[Epochs] = []
    count, spent_seconds = first.setup.run.experiment.repeats, first.spent_seconds()
    if count > 1:
        first.trainer.forget_optimizer()  # frees memory for the next training
    for number in range(2, count + 1):
        again = Training(
            first.setup,
            first.setup.new_network(),
            f"repeat {number}",
            spent_before_seconds=spent_seconds,
            last_epoch=first.trainer.last_epoch,
        )
        monitor.begin()
        again.run(monitor.epoch_ended)
        monitor.training_ended()
        check_repeat(first.trainer, again.trainer, first.setup.run.name, number)
        repeats.append(tuple(again.trainer.progress.timings))
        spent_seconds += passed_seconds(repeats[-1])
    return tuple(repeats)


def check_repeat(first: Trainer, again: Trainer, name: str, number: int) -> None:
    """Raise UserError if a repeat's weights differ from the first training's."""
    if not first.experiment.deterministic:
        return
    pairs = zip(first.progress.metrics, again.progress.metrics, strict=True)
    differing = [before.epoch for before, now in pairs if before != now]
    if differing or weights_of(first.result) != weights_of(again.result):
        where = f"from epoch {differing[0]} on" if differing else "in its weights at the end"
        raise UserError(
            f"{name}, repeat {number} differs from the first training {where}, so their times "
            f"can't be compared: something on this device does not repeat bit for bit. Set "
            f"repeats: 1 in params.yaml"
        )


def train_further_seeds(
    run: Run, device: torch.device, team: World, spent_seconds: float, last_epoch: int | None
) -> tuple[Epochs, ...]:
    """Train from each further seed, write the results, and return the epochs of each seed.

    Rank 0 passes the time of the trainings so far, which counts for the budget.
    """
    folder, seed_runs, epochs = run.out / records.MODEL, [], []
    for seed in range(run.experiment.seed + 1, run.experiment.seed + run.experiment.seeds):
        alone = {"seed": seed, "seeds": 1, "repeats": 1, "save_weights": "last"}
        experiment = run.experiment.model_copy(update=alone)
        setup = Setup(replace(run, experiment=experiment), device, team)
        training = Training(setup, setup.new_network(), f"seed {seed}", spent_seconds, last_epoch)
        try:
            training.run()
        except NonFiniteLossError as error:
            raise NonFiniteLossError(f"from seed {seed}, {error}") from error
        progress = training.trainer.progress
        epochs.append(tuple(progress.timings))
        spent_seconds += passed_seconds(progress.timings)
        if team.is_main:
            weights = weights_of(training.trainer.result)
            write_bytes_atomically(seed_weights(folder, seed), weights)
            sha256, history = sha256_of_bytes(weights), tuple(progress.metrics)
            seed_runs.append(records.SeedRun(seed=seed, weights_sha256=sha256, history=history))
        del setup, training  # so that resident data is in memory only once
    if seed_runs:
        seeds = records.FurtherSeeds(runs=tuple(seed_runs))
        records.write_record(folder / f"{records.SEEDS}.json", seeds)
    return tuple(epochs)
