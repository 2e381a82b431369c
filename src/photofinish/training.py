"""One training stage: the packed split in, what was learned and how long it took out."""

from __future__ import annotations

import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import torch

from photofinish.batches import Batches, LoaderBatches, Normaliser, ResidentBatches
from photofinish.checkpoint import CheckpointStore
from photofinish.clock import Clock
from photofinish.console import TrainingDisplay
from photofinish.datasets.packed import PackedSplit, PartName
from photofinish.devices import apply_policy, forget_peak_memory, refusals_explained
from photofinish.epochs import EpochMetrics, EpochTiming
from photofinish.files import sha256_of_bytes
from photofinish.learned import pickle_network
from photofinish.models import build_model
from photofinish.provenance import seconds_since_process_start, state_folder
from photofinish.results import Measured, weights_of, write_learned, write_timed
from photofinish.tasks import TrainingTask
from photofinish.tracking.client import Tracker
from photofinish.trainer import Trainer

CHECKPOINT_SECONDS = 1.0
"""Least time between two checkpoints, so that epochs of milliseconds aren't spent on writing them."""


def run_training(task: TrainingTask, device: torch.device, tracker: Tracker, lock_seconds: float) -> None:
    """Train, or go on where a killed run was, and write the results."""
    store = CheckpointStore(state_folder() / "checkpoints" / task.key())
    _TrainingRun(task, device, tracker, store, lock_seconds).run()


class _TrainingRun:
    def __init__(
        self, task: TrainingTask, device: torch.device, tracker: Tracker, store: CheckpointStore, lock_seconds: float
    ) -> None:
        self._task, self._device, self._tracker, self._store = task, device, tracker, store
        self._lock_seconds = lock_seconds
        """how long another process kept this one waiting: no part of what the job takes"""
        self._started_at_unix_seconds = time.time() - seconds_since_process_start()
        self._earlier_seconds = 0.0
        self._resumed_at_epochs: tuple[int, ...] = ()
        self._last_checkpoint_seconds = time.monotonic()

    def run(self) -> None:
        task = self._task
        apply_policy(self._device, task.experiment.precision, task.host.threads or 1)
        split, training, validation, data_seconds = self._load_data()
        manifest = split.manifest
        network = build_model(task.experiment.model, manifest.shape, len(manifest.class_names), task.experiment.seed)
        initial_weights_sha256 = sha256_of_bytes(weights_of(network))
        trainer = Trainer(task.experiment, network, training, validation, self._device)
        with self._display(trainer, training) as display, refusals_explained(task.experiment.model.name):
            self._resume(trainer, display)
            warm_up_seconds = trainer.warm_up()
            forget_peak_memory(self._device)
            startup_seconds = seconds_since_process_start() - self._lock_seconds
            self._tracker.wait_until_ready()
            progress = trainer.train(lambda metrics, timing: self._epoch_ended(trainer, display, metrics, timing))
        write_learned(task, split, self._device, trainer.network, progress.metrics, initial_weights_sha256)
        measured = Measured(
            started_at_unix_seconds=self._started_at_unix_seconds,
            startup_seconds=startup_seconds,
            data_seconds=data_seconds,
            warm_up_seconds=warm_up_seconds,
            total_seconds=self._elapsed_seconds(),
            tracking_seconds=self._tracker.waited_seconds,
            resumed_at_epochs=self._resumed_at_epochs,
        )
        write_timed(task, self._device, progress.timings, training.image_count, measured)
        self._tell_tracker(trainer)
        self._store.clear()

    def _load_data(self) -> tuple[PackedSplit, Batches, Batches, float]:
        clock = Clock(self._device)
        started_seconds = clock.now_seconds()
        split = PackedSplit(self._task.data)
        training, validation = (self._batches(split, part) for part in ("train", "validation"))
        return split, training, validation, clock.now_seconds() - started_seconds

    def _batches(self, split: PackedSplit, part: PartName) -> Batches:
        experiment, manifest = self._task.experiment, split.manifest
        normalise = Normaliser(manifest.mean, manifest.std)
        images, labels = split.images(part), split.labels(part)
        common = (images, labels, normalise, experiment.batch_size, experiment.seed, self._device)
        if experiment.input.name == "loader":
            return LoaderBatches(*common, workers=experiment.input.workers, pin_memory=experiment.input.pin_memory)
        return ResidentBatches(*common)

    def _display(self, trainer: Trainer, training: Batches) -> TrainingDisplay:
        return TrainingDisplay(
            f"{self._task.name} on {self._task.device}",
            epochs=self._task.experiment.epochs,
            steps_per_epoch=trainer.steps_per_epoch,
            images=training.image_count,
            steps_done=lambda: trainer.steps_done,
        )

    def _resume(self, trainer: Trainer, display: TrainingDisplay) -> None:
        def say_damaged(path: Path) -> None:
            display.say(f"checkpoint {path} is damaged: taking the one before it")

        state = self._store.load_latest(say_damaged)
        if state:
            trainer.load_state_dict(state["trainer"])
            self._earlier_seconds = state["elapsed_seconds"]
            self._resumed_at_epochs = (*state["resumed_at_epochs"], trainer.progress.epochs_done)
            display.resumed(trainer.progress.epochs_done)

    def _epoch_ended(
        self, trainer: Trainer, display: TrainingDisplay, metrics: EpochMetrics, timing: EpochTiming
    ) -> None:
        display.epoch_ended(metrics, timing)
        if time.monotonic() - self._last_checkpoint_seconds >= CHECKPOINT_SECONDS:
            state = {
                "trainer": trainer.state_dict(),
                "elapsed_seconds": self._elapsed_seconds(),
                "resumed_at_epochs": list(self._resumed_at_epochs),
            }
            self._store.save(metrics.epoch, state)
            self._last_checkpoint_seconds = time.monotonic()
        self._tracker.epoch_ended(asdict(metrics), asdict(timing))

    def _tell_tracker(self, trainer: Trainer) -> None:
        task = self._task
        with tempfile.TemporaryDirectory() as folder:
            pickled = Path(folder) / "model.pth"
            pickle_network(trainer.network, pickled)
            results = task.out.parent.parent
            self._tracker.training_ended(task.name, task.device, results, self._store.paths(), pickled)

    def _elapsed_seconds(self) -> float:
        idle_seconds = self._lock_seconds + self._tracker.waited_seconds
        return self._earlier_seconds + seconds_since_process_start() - idle_seconds
