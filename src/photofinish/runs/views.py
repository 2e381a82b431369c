"""The progress of a training."""

from __future__ import annotations

import statistics
import sys
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Column

from photofinish.results import EpochMetrics, EpochTiming
from photofinish.training.trainer import Trainer
from photofinish.wording import seconds

_LEAST_LEFT_SECONDS = 10.0
_LAST_EPOCHS = 100
"""Number of last epochs whose median gives the time left."""


class TrainingDisplay:
    """Display of a training's progress: a bar on a terminal, else one line for each epoch."""

    def __init__(self, title: str, trainer: Trainer) -> None:
        self._title, self._bar, self._trainer = title, _training_bar(trainer), trainer
        self._epochs, self._images = trainer.experiment.epochs, trainer.training.image_count
        self._bar.disable = not sys.stderr.isatty()
        steps = self._epochs * trainer.steps_per_epoch
        self._task = self._bar.add_task(title, total=steps, note="", spent="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """Print a line after the title, above the bar if there is one."""
        line = f"{self._title}  {text}"
        if self._bar.disable:
            print(line, flush=True)
        else:
            self._bar.console.print(line, highlight=False, markup=False)

    def epoch_ended(
        self, metrics: EpochMetrics, timing: EpochTiming, to_come: int, spent: str = ""
    ) -> None:
        """Show an epoch, the time left for `to_come` epochs, and the price `spent` so far."""
        text = f"epoch {metrics.epoch}/{self._epochs}  loss {metrics.training_loss:.4f}"
        if metrics.validation_loss is not None:
            text += f"  validation {metrics.validation_loss:.4f}"
        if metrics.validation_accuracy is not None:
            text += f", {metrics.validation_accuracy:.2%}"
        if metrics.monitored is not None and (rule := self._trainer.experiment.early_stopping):
            text += f", {rule.monitor} {metrics.monitored:.4f}"
        if self._bar.disable:
            text += f"  {self._images / timing.training_seconds:,.0f} samples/s"
            outlook = ", ".join(filter(None, (_time_left(self._trainer, to_come), spent)))
            self.say("  ".join(filter(None, (text, outlook))))
        else:  # which has a column for the time left
            total = (metrics.epoch + to_come) * self._trainer.steps_per_epoch
            self._bar.update(self._task, note=text, spent=spent, total=total)


def _time_left(trainer: Trainer, to_come: int) -> str:
    """Return `3.0 min left`, or an empty text if the training ends soon."""
    last = trainer.progress.timings[-_LAST_EPOCHS:]
    epoch_seconds = statistics.median(one.training_seconds + one.validation_seconds for one in last)
    left_seconds = epoch_seconds * to_come
    if left_seconds < _LEAST_LEFT_SECONDS:
        return ""
    at_most = "at most " if trainer.experiment.early_stopping else ""
    return f"{at_most}{seconds(left_seconds)} left"


def _training_bar(trainer: Trainer) -> Progress:
    class _Polled(Progress):
        """Bar that reads the trainer's progress when drawn, so that the loop never reports it."""

        def get_renderable(self):  # type: ignore[no-untyped-def]
            for task in self.tasks:
                self.update(task.id, completed=trainer.steps_done)
            return super().get_renderable()

    columns: list[ProgressColumn] = [
        TextColumn("{task.description}"),
        BarColumn(bar_width=16),
        TextColumn("{task.fields[note]}", table_column=Column()),  # wraps on narrow terminals
        TextColumn("{task.fields[spent]}"),
        TimeRemainingColumn(),
    ]
    if trainer.experiment.early_stopping:
        columns.insert(-1, TextColumn("at most"))
    return _Polled(*columns, console=Console(stderr=True), refresh_per_second=4)
