"""The progress of a training."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from photofinish.machine.load import load_warnings
from photofinish.results import EpochMetrics, passed_seconds
from photofinish.results.records import TrainingTimes
from photofinish.training.trainer import Trainer
from photofinish.wording import counted, seconds

_LEAST_LEFT_SECONDS = 60.0
"""A log has no epoch of a training that ends sooner, whose last line says all."""


class TrainingDisplay:
    """Display of a training on rank 0: a bar on a terminal, else at most ten epochs."""

    def __init__(self, title: str, trainer: Trainer, *, is_shown: bool) -> None:
        self._title, self._trainer, self._is_shown = title, trainer, is_shown
        self._epochs, self._tenths = trainer.experiment.epochs, -1
        self.bar = _training_bar(trainer)
        self.bar.disable = not (is_shown and sys.stderr.isatty())
        steps = self._epochs * trainer.steps_per_epoch
        self._task = self.bar.add_task(title, total=steps, note="")

    def say(self, text: str) -> None:
        """Print a line after the title. While there is a bar, it stays below the line."""
        if self._is_shown:
            print(f"{self._title}  {text}", flush=True)

    def epoch_ended(self, metrics: EpochMetrics, to_come: int, spent: str = "") -> None:
        text = f"epoch {metrics.epoch}/{self._epochs}, {self._reached(metrics)}"
        at_most = "at most" if self._trainer.experiment.early_stopping else ""
        epochs = metrics.epoch + to_come
        if not self.bar.disable:  # which ends with the time left
            note = ", ".join(filter(None, (text, spent, at_most)))
            self.bar.update(self._task, note=note, total=epochs * self._trainer.steps_per_epoch)
            return
        timings = self._trainer.progress.timings
        tenths = 10 * metrics.epoch // epochs
        left_seconds = to_come * passed_seconds(timings) / len(timings)
        if left_seconds >= _LEAST_LEFT_SECONDS and tenths > self._tenths:
            self._tenths = tenths
            left = f"{at_most} {seconds(left_seconds)} left".lstrip()
            self.say(", ".join(filter(None, (text, left, spent))))

    def ended(self, timings: TrainingTimes, spent: str) -> None:
        trained, planned = len(timings.epochs), counted(self._epochs, "epoch")
        progress = self._trainer.progress
        rule = self._trainer.experiment.early_stopping
        since_best = progress.epochs_without_better(rule) if rule else 0  # whose weights are kept
        parts = (
            planned if trained == self._epochs else f"{trained:,} of {planned}",
            self._reached(progress.metrics[-1 - since_best]),
            seconds(timings.total_seconds),
            spent,
            "machine was busy" if load_warnings(timings.load) else "",
        )
        self.say(", ".join(filter(None, parts)))

    def _reached(self, metrics: EpochMetrics) -> str:
        if metrics.monitored is not None and (rule := self._trainer.experiment.early_stopping):
            return f"{rule.monitor} {metrics.monitored:.3g}"
        if metrics.validation_accuracy is not None:
            return f"{metrics.validation_accuracy:.1%} validation accuracy"
        if metrics.validation_loss is not None:
            return f"validation loss {metrics.validation_loss:.3g}"
        return f"training loss {metrics.training_loss:.3g}"


def _training_bar(trainer: Trainer) -> Progress:
    class _Polled(Progress):
        """Bar that reads the trainer's progress when drawn, so that the loop never reports it."""

        def get_renderable(self):  # type: ignore[no-untyped-def]
            for task in self.tasks:
                self.update(task.id, completed=trainer.steps_done)
            return super().get_renderable()

    return _Polled(
        TextColumn("{task.description}"),
        BarColumn(bar_width=16),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        refresh_per_second=4,
        transient=True,
    )
