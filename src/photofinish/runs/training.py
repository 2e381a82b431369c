"""Trainings with their checkpoints: the first of a run, its repeats, and those of other seeds."""

from __future__ import annotations

import io
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from torch import nn

from photofinish.errors import UserError
from photofinish.files import sha256_of_bytes, write_bytes_atomically
from photofinish.machine.load import LoadMonitor
from photofinish.results import EpochMetrics, EpochTiming, passed_seconds, records
from photofinish.results.learned import seed_weights, weights_of
from photofinish.results.trained import SeedRun
from photofinish.runs.run import Run, epochs_in_time
from photofinish.runs.setup import JobClock, Setup
from photofinish.runs.views import TrainingDisplay
from photofinish.training.trainer import Trainer
from photofinish.training.world import World

Epochs = tuple[EpochTiming, ...]
CHECKPOINT_SECONDS = 1.0
"""Minimum time between two checkpoints."""
CHECKPOINT_TIMES = 30
"""Minimum time between two checkpoints, in durations of the last save: they take 3 % at most."""
KEPT = 2
CHECKPOINT_DAYS = 30


class Training:
    """A trainer that restores, saves and shows its epochs. All ranks call it; rank 0 saves.

    A repeat or a further seed adds its passes to the time spent before. It ends with `last_epoch`
    if a time limit ended the first training.
    """

    def __init__(
        self,
        setup: Setup,
        network: nn.Module,
        name: str = "",
        spent_before_seconds: float = 0.0,
        last_epoch: int | None = None,
    ) -> None:
        self.setup, self.team = setup, setup.team
        self._costs = setup.run.costs
        self._spent_before_seconds = spent_before_seconds
        self._title = ", ".join(filter(None, (setup.run.title, name)))
        self.initial_weights_sha256 = sha256_of_bytes(weights_of(network))
        self.trainer = setup.new_trainer(network)
        self.trainer.last_epoch = last_epoch
        self.display = TrainingDisplay(self._title, self.trainer, is_shown=self.team.is_main)
        self._store = CheckpointStore(setup.run.checkpoint_folder() / name.replace(" ", "-"))
        self._epochs_saved = 0
        self.checkpoint_seconds = 0.0
        """Time in which this process saved checkpoints, which is not the job's."""
        self.resumed_at_epochs: tuple[int, ...] = ()

    def epoch_weights(self, epoch: int) -> Path:
        """Return the file for the weights after an epoch, if `save_weights` is every_epoch."""
        return self._store.folder / records.EPOCHS / f"epoch-{epoch:04d}.safetensors"

    def spent_seconds(self) -> float:
        """Return the time that counts for the budget."""
        return self._spent_before_seconds + passed_seconds(self.trainer.progress.timings)

    def restore(self) -> None:
        """Load the last checkpoint on every rank, if rank 0 has one, and check the budget."""
        state = self._store.load_latest(self.display.say) if self.team.is_main else None
        state = self.team.broadcast_object(state)
        spent_seconds = self._spent_before_seconds
        if state is not None:
            self._load(state)
            spent_seconds = state["spent_seconds"]
        if self.team.is_main and self.trainer.epochs_left():
            # Without this process's start-up, so that a raised budget allows an epoch.
            self._costs.check(spent_seconds, self._title, f"epoch {self._epochs_saved}")

    def _load(self, state: dict[str, Any]) -> None:
        self.trainer.load_state_dict(state["trainer"])
        self._epochs_saved = self.trainer.progress.epochs_done
        self.resumed_at_epochs = (*state["resumed_at_epochs"], self._epochs_saved)
        self.display.say(f"resumes after epoch {self._epochs_saved}")

    def run(self, epoch_ended: Callable[[], None] | None = None) -> None:
        """Train the epochs that are left, warm-up included."""
        with self.display.bar:
            self.restore()
            if self.trainer.epochs_left():
                self.trainer.prepare()
            for _ in self.epochs():
                if epoch_ended:
                    epoch_ended()

    def epochs(self) -> Iterator[tuple[EpochMetrics, EpochTiming]]:
        """Train the epochs that are left.

        Between epochs, check the limits, show the epoch, and save a checkpoint if it is due.
        """
        for metrics, timing in self.trainer.epochs():
            self._epoch_trained(metrics.epoch)
            if self.team.is_main:
                spent = self._costs.so_far(self.spent_seconds())
                self.display.epoch_ended(metrics, self._epochs_to_come(), spent)
                # The last one, too, before the trainer loads the weights of the best epoch.
                if self._store.is_due() or not self.trainer.epochs_left():
                    self.save()
            yield metrics, timing
            reaches_budget = self._costs.reach_budget(self.spent_seconds())
            if self.team.is_main and reaches_budget and self.trainer.epochs_left():
                self.save()
                self._costs.check(self.spent_seconds(), self._title, f"epoch {metrics.epoch}")

    def save(self) -> None:
        """Save a checkpoint, unless no epoch was trained since the last checkpoint."""
        epochs_done = self.trainer.progress.epochs_done
        if epochs_done == self._epochs_saved:
            return
        spent_seconds, started_seconds = self.spent_seconds(), time.monotonic()
        state = {
            "trainer": self.trainer.state_dict(),
            "spent_seconds": spent_seconds,
            "resumed_at_epochs": list(self.resumed_at_epochs),
        }
        self._store.save(epochs_done, state)
        self.checkpoint_seconds += time.monotonic() - started_seconds
        self._epochs_saved = epochs_done

    def _epoch_trained(self, epoch: int) -> None:
        """Do what must precede the epoch's checkpoint."""

    def _epochs_to_come(self) -> int:
        """Return how many epochs are left, within the time limit if there is one."""
        return self.trainer.epochs_left()


class FirstTraining(Training):
    """First training of a run, whose time is the job's. It alone has a time limit."""

    def __init__(self, setup: Setup, clock: JobClock) -> None:
        network = setup.new_network(clock.excluded)
        if setup.team.is_main:
            with clock.excluded():
                setup.check_custom_code(network)
        super().__init__(setup, network)
        self._clock = clock

    def spent_seconds(self) -> float:
        return self._clock.elapsed_seconds()

    def save(self) -> None:
        with self._clock.excluded():
            super().save()

    def _load(self, state: dict[str, Any]) -> None:
        super()._load(state)
        self._clock.earlier_seconds = state["spent_seconds"]
        self._end_in_time()

    def _end_in_time(self) -> None:
        """End here if the next epoch would exceed the time limit. Rank 0 decides for all."""
        limit_seconds = self.setup.run.experiment.time_limit_seconds
        is_limited = limit_seconds and self.trainer.epochs_left()
        if is_limited and self.team.broadcast_object(self._epochs_to_come()) == 0:
            self.trainer.last_epoch = self.trainer.progress.epochs_done

    def _epoch_trained(self, epoch: int) -> None:
        self._end_in_time()
        if self.team.is_main and self.setup.run.experiment.save_weights == "every_epoch":
            write_bytes_atomically(self.epoch_weights(epoch), weights_of(self.trainer.result))

    def _epochs_to_come(self) -> int:
        limit_seconds = self.setup.run.experiment.time_limit_seconds
        timings = self.trainer.progress.timings
        in_time = epochs_in_time(limit_seconds, self.spent_seconds(), timings)
        return min(super()._epochs_to_come(), in_time)


def train_repeats(first: Training, monitor: LoadMonitor) -> tuple[Epochs, ...]:
    repeats: list[Epochs] = []
    count = first.setup.run.experiment.repeats
    spent_seconds = first.spent_seconds()
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
    run: Run, team: World, spent_seconds: float, last_epoch: int | None
) -> tuple[Epochs, ...]:
    """Train from each further seed, write the results, and return the epochs of each seed.

    Rank 0 passes the time of the trainings so far, which counts for the budget.
    """
    folder, seed_runs, epochs = run.out / records.MODEL, [], []
    for seed in range(run.experiment.seed + 1, run.experiment.seed + run.experiment.seeds):
        alone = {"seed": seed, "seeds": 1, "repeats": 1, "save_weights": "last"}
        experiment = run.experiment.model_copy(update=alone)
        setup = Setup(replace(run, experiment=experiment), team)
        training = Training(setup, setup.new_network(), f"seed {seed}", spent_seconds, last_epoch)
        training.run()
        progress = training.trainer.progress
        epochs.append(tuple(progress.timings))
        spent_seconds += passed_seconds(progress.timings)
        if team.is_main:
            weights = weights_of(training.trainer.result)
            write_bytes_atomically(seed_weights(folder, seed), weights)
            sha256, history = sha256_of_bytes(weights), tuple(progress.metrics)
            seed_runs.append(SeedRun(seed=seed, weights_sha256=sha256, history=history))
        del setup, training  # so that resident data is in memory only once
    if seed_runs:
        seeds = records.FurtherSeeds(runs=tuple(seed_runs))
        records.write_record(folder / f"{records.SEEDS}.json", seeds)
    return tuple(epochs)


def prune_checkpoints(folder: Path) -> None:
    oldest_unix_seconds = time.time() - CHECKPOINT_DAYS * 24 * 3600
    for run in folder.glob("*"):
        if run.stat().st_mtime < oldest_unix_seconds:
            shutil.rmtree(run, ignore_errors=True)


class CheckpointStore:
    """Checkpoints of one training run: atomic, checked by sha256, the last two kept.

    They are outside DVC's outs, which DVC deletes before a stage runs. Each file's name has its
    sha256, because torch.load doesn't check its input.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._saved_seconds = time.monotonic()
        self._last_save_seconds = 0.0

    def is_due(self) -> bool:
        """Return True if enough time has passed since the last save."""
        wait_seconds = max(CHECKPOINT_SECONDS, CHECKPOINT_TIMES * self._last_save_seconds)
        return time.monotonic() - self._saved_seconds >= wait_seconds

    def save(self, epochs_done: int, state: dict[str, Any]) -> None:
        """Write a checkpoint, then delete all but the last two."""
        started_seconds = time.monotonic()
        buffer = io.BytesIO()
        torch.save(_loadable(state), buffer)
        data = buffer.getvalue()
        path = self.folder / f"epoch-{epochs_done:06d}.{sha256_of_bytes(data)}.pt"
        write_bytes_atomically(path, data)
        for old in self.paths()[KEPT:]:
            old.unlink(missing_ok=True)
        self._saved_seconds = time.monotonic()
        self._last_save_seconds = self._saved_seconds - started_seconds

    def load_latest(self, say: Callable[[str], None] = print) -> dict[str, Any] | None:
        """Load the newest intact checkpoint. Report and remove damaged checkpoints."""
        for path in self.paths():
            data = path.read_bytes()
            problem = "is damaged"
            if sha256_of_bytes(data) == path.name.split(".")[1]:
                try:
                    loaded = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
                    return dict(loaded)
                except UnpicklingError:  # it has code, which is not executed
                    problem = "has more than tensors and numbers in it"
            say(f"checkpoint {path} {problem} and is not used")
            path.unlink()
        return None

    def paths(self) -> list[Path]:
        """Return the existing checkpoints, the newest first."""
        return sorted(self.folder.glob("epoch-*.*.pt"), reverse=True)


def _loadable(value: Any) -> Any:
    """Return a state that loads without code. NumPy's numbers become Python's."""
    if type(value) is dict:  # a network's state is an OrderedDict with versions beside it
        return {key: _loadable(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_loadable, value))
    return value.item() if isinstance(value, np.generic) else value
