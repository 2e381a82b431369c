"""The progress of a training."""

from __future__ import annotations

import sys
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from photofinish.results import EpochMetrics, EpochTiming
from photofinish.training.trainer import Trainer


class TrainingDisplay:
    """The progress of a training: a bar on a terminal, one line an epoch anywhere else."""

    def __init__(self, title: str, trainer: Trainer) -> None:
        self._title, self._bar = title, _training_bar(trainer)
        self._epochs, self._images = trainer.experiment.epochs, trainer.training.image_count
        self._bar.disable = not sys.stderr.isatty()
        steps = self._epochs * trainer.steps_per_epoch
        self._task = self._bar.add_task(title, total=steps, note="")

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

    def epoch_ended(self, metrics: EpochMetrics, timing: EpochTiming) -> None:
        text = (
            f"epoch {metrics.epoch}/{self._epochs}  loss {metrics.training_loss:.4f}  "
            f"validation {metrics.validation_loss:.4f}"
        )
        if metrics.validation_accuracy is not None:
            text += f", {metrics.validation_accuracy:.2%}"
        if self._bar.disable:
            self.say(f"{text}  {self._images / timing.training_seconds:,.0f} samples/s")
        else:
            self._bar.update(self._task, note=text)


def _training_bar(trainer: Trainer) -> Progress:
    class _Polled(Progress):
        """Reads the trainer's progress when it draws, so that the loop never reports it."""

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
    )
