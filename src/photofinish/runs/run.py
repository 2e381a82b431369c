"""What the training loop spends between its timed passes, by what for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

import torch

from photofinish.files import sha256_of_bytes, state_folder
from photofinish.machine.accelerators import nvidia_gpu_state
from photofinish.machine.energy import Energy, unavailable
from photofinish.machine.load import MachineWatch, doubts
from photofinish.processes import seconds_since_stage_start
from photofinish.results import records
from photofinish.results.epochs import EpochMetrics, EpochTiming, passed_seconds
from photofinish.results.learned import rebuilt, weights_of
from photofinish.results.records import Overhead
from photofinish.runs.console import TrainingDisplay
from photofinish.runs.further_measurements import FurtherMeasurements, Repeats, measure_further, repeat, repeats_in
from photofinish.runs.job import TeamEnergy, TrainingJob
from photofinish.runs.task import TrainingTask
from photofinish.runs.writer import Measured, write_learned, write_timed
from photofinish.tracking.client import Tracker
from photofinish.training.batches import Batches
from photofinish.training.checkpoint import CheckpointStore, EpochWeights, State, on_cpu, remove_forgotten
from photofinish.training.failures import failures_explained
from photofinish.training.loader import worker_faults_explained
from photofinish.training.teams import Team
from photofinish.training.torch_device import apply_policy, nvidia_uuid
from photofinish.training.trainer import Trainer
from photofinish.wording import seconds

Purpose = Literal["display", "saving", "tracking", "watching"]


class OverheadMeter:
    def __init__(self) -> None:
        self._seconds: dict[Purpose, float] = dict.fromkeys(get_args(Purpose), 0.0)
        self._loop_seconds = 0.0

    @contextmanager
    def loop(self) -> Iterator[None]:
        """Around the whole loop, its timed passes included."""
        started_seconds = time.perf_counter()
        yield
        self._loop_seconds += time.perf_counter() - started_seconds

    @contextmanager
    def spent_on(self, purpose: Purpose) -> Iterator[None]:
        started_seconds = time.perf_counter()
        yield
        self._seconds[purpose] += time.perf_counter() - started_seconds

    def overhead(self, passes_seconds: float) -> Overhead:
        """Given what the loop spent in its timed passes; what is left over is nobody's."""
        rest_seconds = self._loop_seconds - passes_seconds - sum(self._seconds.values())
        named = {f"{purpose}_seconds": seconds for purpose, seconds in self._seconds.items()}
        return Overhead(passes_seconds=passes_seconds, rest_seconds=max(0.0, rest_seconds), **named)


CHECKPOINT_SECONDS = 1.0
"""Least time between two checkpoints, so that epochs of milliseconds aren't spent on writing them."""

_ONLY_ITS_LAST_PART = "the training was interrupted, and only its last part was watched"


def run_training(task: TrainingTask, device: torch.device, team: Team, tracker: Tracker, lock_seconds: float) -> None:
    """Train, or go on where a killed run was, and write the results."""
    checkpoints = state_folder() / "checkpoints"
    remove_forgotten(checkpoints, state_folder() / "locks")
    store = CheckpointStore(checkpoints / task.key())
    with failures_explained(task.name, task.experiment, team), worker_faults_explained():
        _TrainingRun(task, device, team, tracker, store, lock_seconds).run()


@dataclass(frozen=True)
class _Timed:
    """What was measured around the first training."""

    warm_up_seconds: float
    startup_seconds: float
    peak_memory_bytes: int | None
    energy: tuple[Energy, ...]
    overhead: records.Overhead


class _TrainingRun:
    def __init__(
        self,
        task: TrainingTask,
        device: torch.device,
        team: Team,
        tracker: Tracker,
        store: CheckpointStore,
        lock_seconds: float,
    ) -> None:
        self._task, self._device, self._team, self._tracker, self._store = task, device, team, tracker, store
        self._epoch_weights = EpochWeights(store.folder / records.EPOCHS)
        self._lock_seconds = lock_seconds
        """how long another process kept this one waiting: no part of what the job takes"""
        self._started_at_unix_seconds = time.time() - seconds_since_stage_start()
        self._earlier_seconds = 0.0
        self._resumed_at_epochs: tuple[int, ...] = ()
        self._last_checkpoint_seconds = time.monotonic()
        self._epochs_saved = 0
        """at the last checkpoint, of all repeats"""
        self._untimed_seconds = 0.0
        self._repeats: Repeats = []
        self._meter = OverheadMeter()
        self._watch = MachineWatch(nvidia_gpu_state(nvidia_uuid(device)))
        self._energy = TeamEnergy(team)

    def run(self) -> None:
        task = self._task
        apply_policy(self._device, task.experiment.precision, task.host.threads or 1)
        job = TrainingJob(task, self._device, self._team)
        network = job.new_network()
        initial_weights_sha256 = sha256_of_bytes(weights_of(network))
        trainer = job.new_trainer(network)
        with self._display(trainer, job.training) as display:
            self._resume(trainer, display)
            timed = self._train(trainer, display)
            with self._untimed():
                self._repeat(job, trainer, display)
                further = measure_further(job, trainer)
            for doubt in doubts(self._watch.windows):
                display.say(f"take the times with care: {doubt}")
        self._write_learned(job, trainer, initial_weights_sha256, further)
        measured = self._measured(job, timed, further)
        self._tracker.model_follows()
        self._write_views(job, trainer)
        write_timed(task, self._device, trainer.progress.timings, job.training.image_count, measured)
        self._tracker.training_ended(task.name, task.device, task.out.parent.parent, self._store.paths())
        self._store.clear()

    def _train(self, trainer: Trainer, display: TrainingDisplay) -> _Timed:
        epochs_before = trainer.progress.epochs_done
        warm_up_seconds = trainer.warm_up()
        self._team.forget_peak_memory()
        startup_seconds = seconds_since_stage_start() - self._lock_seconds
        self._tracker.wait_until_ready()
        self._watch.begin()
        self._energy.begin()
        with self._meter.loop():
            trainer.train(lambda metrics, timing: self._epoch_ended(trainer, display, metrics, timing))
        energy = self._energy.training_ended()
        self._watch.training_ended()
        return _Timed(
            warm_up_seconds=warm_up_seconds,
            startup_seconds=startup_seconds,
            peak_memory_bytes=self._team.peak_memory_bytes(),
            energy=unavailable(energy, _ONLY_ITS_LAST_PART) if self._resumed_at_epochs else energy,
            overhead=self._meter.overhead(passed_seconds(trainer.progress.timings[epochs_before:])),
        )

    def _measured(self, job: TrainingJob, timed: _Timed, further: FurtherMeasurements) -> Measured:
        """Called before what is drawn for people to look at, which is no part of the job's time."""
        return Measured(
            **vars(timed),
            started_at_unix_seconds=self._started_at_unix_seconds,
            data_seconds=job.data_seconds,
            total_seconds=self._elapsed_seconds(),
            tracking_seconds=self._tracker.waited_seconds,
            resumed_at_epochs=self._resumed_at_epochs,
            device_count=self._team.device_count,
            repeats=tuple(self._repeats),
            steady_state=further.steady_state,
            load=tuple(self._watch.windows),
            attribution=further.attribution,
            not_attributed=further.not_attributed,
        )

    def _write_learned(
        self, job: TrainingJob, trainer: Trainer, initial_weights_sha256: str, further: FurtherMeasurements
    ) -> None:
        task, history = self._task, trainer.progress.metrics
        write_learned(
            task, job.split, self._device, trainer.network, history, initial_weights_sha256, self._epoch_weights
        )
        assert further.first_step is not None  # this process leads
        records.write_record(task.out / records.LEARNED / records.FIRST_STEP, further.first_step)

    def _write_views(self, job: TrainingJob, trainer: Trainer) -> None:
        # Imported now that nothing is timed any more: it takes its time.
        from photofinish.runs.views import write_views

        task, manifest = self._task, job.split.manifest
        trained = rebuilt(task.experiment, manifest.shape, len(manifest.class_names), trainer.network.state_dict())
        write_views(task.out / records.LEARNED, trained, job.whole_batches(), manifest)

    def _repeat(self, job: TrainingJob, trainer: Trainer, display: TrainingDisplay) -> None:
        wanted = self._task.experiment.repeats
        if wanted == 1:
            return

        def repeat_ended(number: int) -> None:
            self._save(state, elapsed_seconds)
            self._watch.training_ended()
            display.say(f"repeat {number} of {wanted}: {seconds(passed_seconds(self._repeats[-1]))}")
            self._watch.begin()

        elapsed_seconds = self._elapsed_seconds()
        state = trainer.state_dict()
        state["optimizer"] = on_cpu(state["optimizer"])
        self._save(state, elapsed_seconds)  # a run killed from here on trains no more
        trainer.forget_optimizer()  # another trainer needs the memory now
        self._watch.begin()
        repeat(job, trainer, self._repeats, self._watch.epoch_ended, repeat_ended)

    @contextmanager
    def _untimed(self) -> Iterator[None]:
        """For what is no part of the job, though it happens in the middle of it."""
        started_seconds = time.monotonic()
        yield
        self._untimed_seconds += time.monotonic() - started_seconds

    def _display(self, trainer: Trainer, training: Batches) -> TrainingDisplay:
        return TrainingDisplay(
            f"{self._task.name} on {self._task.device}",
            epochs=self._task.experiment.epochs,
            steps_per_epoch=trainer.steps_per_epoch,
            images=training.image_count,
            steps_done=lambda: trainer.steps_done,
        )

    def _resume(self, trainer: Trainer, display: TrainingDisplay) -> None:
        state = self._team.from_leader(self._whole_state(display))
        if state:
            trainer.load_state_dict(state["trainer"])
            self._earlier_seconds = state["elapsed_seconds"]
            self._resumed_at_epochs = (*state["resumed_at_epochs"], trainer.progress.epochs_done)
            self._repeats = repeats_in(state)
            display.resumed(trainer.progress.epochs_done)

    def _whole_state(self, display: TrainingDisplay) -> State | None:
        """The last checkpoint, if there is one and all that belongs to it is there."""

        def say_damaged(path: Path) -> None:
            display.say(f"checkpoint {path} is damaged: taking the one before it")

        state = self._store.load_latest(say_damaged)
        lost = self._epoch_weights.resume(state["epoch_weights_sha256"]) if state else None
        if lost:
            display.say(f"{lost} is missing or damaged: training starts over")
            self._store.clear()
            return None
        return state

    def _epoch_ended(
        self, trainer: Trainer, display: TrainingDisplay, metrics: EpochMetrics, timing: EpochTiming
    ) -> None:
        with self._meter.spent_on("display"):
            display.epoch_ended(metrics, timing)
        with self._meter.spent_on("saving"):
            if self._task.experiment.save_weights == "every_epoch":
                self._epoch_weights.save(weights_of(trainer.network))
            if time.monotonic() - self._last_checkpoint_seconds >= CHECKPOINT_SECONDS:
                self._save(trainer.state_dict(), self._elapsed_seconds())
                self._last_checkpoint_seconds = time.monotonic()
        with self._meter.spent_on("tracking"):
            self._tracker.epoch_ended(asdict(metrics), asdict(timing))
        with self._meter.spent_on("watching"):
            self._watch.epoch_ended(1, metrics.epoch)
            self._energy.epoch_ended()

    def _save(self, trainer: State, elapsed_seconds: float) -> None:
        state = {
            "trainer": trainer,
            "epoch_weights_sha256": self._epoch_weights.sha256,
            "elapsed_seconds": elapsed_seconds,
            "resumed_at_epochs": list(self._resumed_at_epochs),
            "repeats": [[asdict(timing) for timing in timings] for timings in self._repeats],
        }
        epochs_in_all = trainer["progress"]["epochs_done"] * (1 + len(self._repeats))
        if epochs_in_all > self._epochs_saved:
            self._store.save(epochs_in_all, state)
            self._epochs_saved = epochs_in_all

    def _elapsed_seconds(self) -> float:
        idle_seconds = self._lock_seconds + self._tracker.waited_seconds + self._untimed_seconds
        return self._earlier_seconds + seconds_since_stage_start() - idle_seconds


def follow_training(task: TrainingTask, device: torch.device, team: Team) -> None:
    with failures_explained(task.name, task.experiment, team), worker_faults_explained():
        apply_policy(device, task.experiment.precision, task.host.threads or 1)
        job, repeats = TrainingJob(task, device, team), Repeats()
        trainer = job.new_trainer()
        if state := team.from_leader(None):
            trainer.load_state_dict(state["trainer"])
            repeats = repeats_in(state)
        trainer.warm_up()
        team.forget_peak_memory()
        energy = TeamEnergy(team)
        energy.begin()
        trainer.train(lambda _metrics, _timing: energy.epoch_ended())
        energy.training_ended()
        team.peak_memory_bytes()
        repeat(job, trainer, repeats)
        measure_further(job, trainer)
