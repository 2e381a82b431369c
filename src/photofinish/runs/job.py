"""State that an interrupted training passes on to the process that resumes it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

from photofinish.files import write_bytes_atomically
from photofinish.processes import seconds_since_stage_start
from photofinish.results import EpochTiming, records
from photofinish.results.learned import weights_of
from photofinish.runs.run import Run
from photofinish.runs.views import TrainingDisplay
from photofinish.tracking.client import Tracker
from photofinish.training.checkpoint import CheckpointStore, State
from photofinish.training.trainer import Trainer
from photofinish.training.world import World


class Job:
    """A run over all its processes: its time, its repeats, its checkpoints."""

    def __init__(self, run: Run, tracker: Tracker | None, excluded_seconds: float) -> None:
        self.tracker, self._run = tracker, run
        self.excluded_seconds = excluded_seconds
        """Wall time of this process that is no part of the job: locks, checks, profiling."""
        self.earlier_seconds = 0.0
        """Job time of the processes before this one."""
        self.resumed_at_epochs: tuple[int, ...] = ()
        self.repeats: list[tuple[EpochTiming, ...]] = []
        """Epochs of each further training from the same start."""
        self._store = CheckpointStore(run.checkpoint_folder())
        self.epoch_weights_folder = self._store.folder / records.EPOCHS
        """Weights after each epoch, a file each, if they are kept."""
        self._keeps_every_epoch = run.experiment.save_weights == "every_epoch"
        self._epochs_saved = 0

    def elapsed_seconds(self) -> float:
        """Return how long the job has taken so far, over all its processes."""
        tracking_seconds = self.tracker.waited_seconds if self.tracker else 0.0
        excluded_seconds = self.excluded_seconds + tracking_seconds
        return self.earlier_seconds + seconds_since_stage_start() - excluded_seconds

    @contextmanager
    def excluded(self) -> Iterator[None]:
        started_seconds = time.monotonic()
        yield
        self.excluded_seconds += time.monotonic() - started_seconds

    def restore(self, trainer: Trainer, team: World, display: TrainingDisplay) -> None:
        """Load the last checkpoint on every rank, if rank 0 has one."""
        state = self._store.load_latest(display.say) if team.rank == 0 else None
        state = team.broadcast_object(state)
        if state is None:
            return
        trainer.load_state_dict(state["trainer"])
        epochs_done = trainer.progress.epochs_done
        self.earlier_seconds = state["elapsed_seconds"]
        self.resumed_at_epochs = (*state["resumed_at_epochs"], epochs_done)
        for timings in state["repeats"]:
            self.repeats.append(tuple(EpochTiming(**timing) for timing in timings))
        self._epochs_saved = epochs_done * (1 + len(self.repeats))
        if team.rank == 0:
            display.say(f"resumes after epoch {epochs_done}")
            if trainer.epochs_left():
                # Without this process's start-up, so that a raised budget trains an epoch.
                title = self._run.title
                self._run.costs.check(self.earlier_seconds, title, f"epoch {epochs_done}")

    def epoch_ended(self, trainer: Trainer, epoch: int) -> None:
        """Save the epoch's weights if they are kept, and a checkpoint if one is due."""
        if self._keeps_every_epoch:
            path = self.epoch_weights_folder / f"epoch-{epoch:04d}.safetensors"
            write_bytes_atomically(path, weights_of(trainer.result))
        if self._store.is_due():
            self.save(trainer.state_dict(), self.elapsed_seconds())

    def check_budget(self, trainer: Trainer) -> None:
        """Save a checkpoint and raise UserError if the budget is spent and epochs are left."""
        elapsed_seconds, costs = self.elapsed_seconds(), self._run.costs
        if costs.reach_budget(elapsed_seconds) and trainer.epochs_left():
            self.save(trainer.state_dict(), elapsed_seconds)
            epoch = f"epoch {trainer.progress.epochs_done}"
            costs.check(elapsed_seconds, self._run.title, epoch)

    def save(self, trainer_state: State, elapsed_seconds: float) -> None:
        """Save a checkpoint, unless nothing was trained since the last one."""
        epochs = trainer_state["progress"]["epochs_done"] * (1 + len(self.repeats))
        if epochs == self._epochs_saved:
            return
        state = {
            "trainer": trainer_state,
            "elapsed_seconds": elapsed_seconds,
            "resumed_at_epochs": list(self.resumed_at_epochs),
            "repeats": [[asdict(timing) for timing in timings] for timings in self.repeats],
        }
        self._store.save(epochs, state)
        self._epochs_saved = epochs
