"""What a person sees while a network trains: a bar on a terminal, a plain line an epoch anywhere else."""

from __future__ import annotations

import sys
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from photofinish.display import Display
from photofinish.results.epochs import EpochMetrics, EpochTiming

_REFRESHES_PER_SECOND = 4


class TrainingDisplay(Display):
    def __init__(
        self, title: str, *, epochs: int, steps_per_epoch: int, images: int, steps_done: Callable[[], int]
    ) -> None:
        super().__init__(title, lambda: _training_bar(steps_done), sys.stdout)
        self._epochs, self._images = epochs, images
        if self._bar:
            self._bar.add_task(title, total=epochs * steps_per_epoch, note="")

    def resumed(self, epochs_done: int) -> None:
        self.say(f"goes on after epoch {epochs_done}")

    def epoch_ended(self, metrics: EpochMetrics, timing: EpochTiming) -> None:
        text = f"epoch {metrics.epoch}/{self._epochs}  loss {metrics.training_loss:.4f}"
        if self._bar:
            self._bar.update(self._bar.task_ids[0], note=f"{text}  {metrics.validation_accuracy:.1%}")
        else:
            images_per_second = self._images / timing.training_seconds
            validation = f"{metrics.validation_loss:.4f}, {metrics.validation_accuracy:.2%}"
            self.say(f"{text}  validation {validation}  {images_per_second:,.0f} images/s")


def _training_bar(steps_done: Callable[[], int]) -> Progress:
    class _Polled(Progress):
        """Reads where training is when it draws, so that the training loop never has to tell it."""

        def get_renderable(self):  # type: ignore[no-untyped-def]
            for task in self.tasks:
                self.update(task.id, completed=steps_done())
            return super().get_renderable()

    return _Polled(
        TextColumn("{task.description}"),
        BarColumn(bar_width=16),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        refresh_per_second=_REFRESHES_PER_SECOND,
    )
