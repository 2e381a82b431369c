"""What a training carries from process to process when it is interrupted and resumed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

from photofinish.processes import seconds_since_stage_start
from photofinish.results import EpochTiming, records
from photofinish.results.learned import weights_of
from photofinish.runs.repeats import Repeats
from photofinish.runs.run import Run
from photofinish.runs.views import TrainingDisplay
from photofinish.tracking.client import Tracker
from photofinish.training.checkpoint import CheckpointStore, EpochWeights, State
from photofinish.training.trainer import Trainer
from photofinish.training.world import World


@dataclass
class Job:
    """How long a training took so far, over all its processes, and the repeats it has done."""

    tracker: Tracker | None
    excluded_seconds: float
    """Wall time of this process that is no part of the job: locks, checks, profiling."""
    earlier_seconds: float = 0.0
    """Job time of the processes before this one."""
    resumed_at_epochs: tuple[int, ...] = ()
    repeats: Repeats = field(default_factory=list)

    def elapsed_seconds(self) -> float:
        """Return how long the job has taken so far, over all its processes."""
        tracking_seconds = self.tracker.waited_seconds if self.tracker else 0.0
        own_seconds = seconds_since_stage_start() - self.excluded_seconds - tracking_seconds
        return self.earlier_seconds + own_seconds

    @contextmanager
    def excluded(self) -> Iterator[None]:
        """Leave the time of the block out of the job's."""
        started_seconds = time.monotonic()
        yield
        self.excluded_seconds += time.monotonic() - started_seconds


class RunCheckpoints:
    """Saves and restores a run: its trainer, its epochs' weights, its job."""

    def __init__(self, run: Run, trainer: Trainer, job: Job) -> None:
        self._run, self._trainer, self.job = run, trainer, job
        self._store = CheckpointStore(run.checkpoint_folder())
        self.epoch_weights = EpochWeights(self._store.folder / records.EPOCHS)
        self._epochs_saved = 0

    def restore(self, team: World, display: TrainingDisplay) -> None:
        """Load the last checkpoint on every rank, if rank 0 has one."""
        state = self._load(display) if team.rank == 0 else None
        state = team.broadcast_object(state)
        if state is None:
            return
        trainer, job = self._trainer, self.job
        trainer.load_state_dict(state["trainer"])
        epochs_done = trainer.progress.epochs_done
        job.earlier_seconds = state["elapsed_seconds"]
        job.resumed_at_epochs = (*state["resumed_at_epochs"], epochs_done)
        job.repeats = [tuple(EpochTiming(**timing) for timing in timings) for timings in state["repeats"]]
        self._epochs_saved = epochs_done * (1 + len(job.repeats))
        if team.rank == 0:
            display.say(f"resumes after epoch {epochs_done}")

    def _load(self, display: TrainingDisplay) -> State | None:
        state = self._store.load_latest(display.say)
        if state is None:
            return None
        damaged = self.epoch_weights.resume(state["epoch_weights_sha256"])
        if damaged:
            display.say(f"{damaged} is missing or damaged: training starts over")
            self._store.clear()
            return None
        return state

    def epoch_ended(self) -> None:
        """Save the epoch's weights if they are kept, and a checkpoint if one is due."""
        if self._run.experiment.save_weights == "every_epoch":
            self.epoch_weights.save(weights_of(self._trainer.network))
        if self._store.is_due():
            self.save(self._trainer.state_dict(), self.job.elapsed_seconds())

    def save(self, trainer_state: State, elapsed_seconds: float) -> None:
        """Save `trainer_state` and the job, unless nothing was trained since the last time."""
        job = self.job
        epochs = trainer_state["progress"]["epochs_done"] * (1 + len(job.repeats))
        if epochs == self._epochs_saved:
            return
        state = {
            "trainer": trainer_state,
            "epoch_weights_sha256": self.epoch_weights.sha256,
            "elapsed_seconds": elapsed_seconds,
            "resumed_at_epochs": list(job.resumed_at_epochs),
            "repeats": [[asdict(timing) for timing in timings] for timings in job.repeats],
        }
        self._store.save(epochs, state)
        self._epochs_saved = epochs
