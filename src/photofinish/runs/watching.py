"""What watches a training between its timed passes: energy, what the loop spends besides, and what a person sees."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Literal, get_args

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from photofinish.display import Display
from photofinish.machine.energy import Energy, added_up, energy_meters
from photofinish.processes import own_rank
from photofinish.results import EpochMetrics, EpochTiming
from photofinish.results.measurements import Overhead
from photofinish.training.teams import Team
from photofinish.training.torch_device import nvidia_uuid
from photofinish.training.trainer import Trainer

_REFRESHES_PER_SECOND = 4
_Purpose = Literal["loop", "display", "saving", "tracking", "watching"]


class TeamEnergy:
    """Every process of the team watches its own devices; the first one on each machine its CPU besides."""

    def __init__(self, team: Team) -> None:
        self._team, rank = team, own_rank()
        uuids = [nvidia_uuid(device) for device in team.devices]
        leads = rank is None or rank.local_number == 0
        self._meters = energy_meters(team.devices[0].type, uuids, first_of_machine=leads)

    def begin(self) -> None:
        """When the training does."""
        for meter in self._meters:
            meter.begin()

    def epoch_ended(self) -> None:
        """Counters that would run over are read in time."""
        for meter in self._meters:
            meter.epoch_ended()

    def training_ended(self) -> tuple[Energy, ...]:
        """Of everyone: the other processes ask at the same time."""
        everyones = self._team.gather_lists([meter.training_ended() for meter in self._meters])
        return added_up(chain.from_iterable(everyones))


class OverheadMeter:
    """What the training loop spends between its timed passes, by what for."""

    def __init__(self) -> None:
        self._seconds: dict[_Purpose, float] = dict.fromkeys(get_args(_Purpose), 0.0)

    @contextmanager
    def spent_on(self, purpose: _Purpose) -> Iterator[None]:
        """Around what is done for that, inside of the loop; or around the whole loop, its timed passes included."""
        started_seconds = time.perf_counter()
        yield
        self._seconds[purpose] += time.perf_counter() - started_seconds

    def overhead(self, passes_seconds: float) -> Overhead:
        """Given what the loop spent in its timed passes; what is left over is nobody's."""
        named = {f"{purpose}_seconds": seconds for purpose, seconds in self._seconds.items()}
        rest_seconds = named.pop("loop_seconds") - passes_seconds - sum(named.values())
        return Overhead(passes_seconds=passes_seconds, rest_seconds=max(0.0, rest_seconds), **named)


class TrainingDisplay(Display):
    """What a person sees while a network trains: a bar on a terminal, a plain line an epoch anywhere else."""

    def __init__(self, title: str, trainer: Trainer) -> None:
        super().__init__(title, lambda: _training_bar(trainer), sys.stdout)
        self._epochs, self._images = trainer.experiment.epochs, trainer.training.image_count
        if self._bar:
            self._bar.add_task(title, total=self._epochs * trainer.steps_per_epoch, note="")

    def epoch_ended(self, metrics: EpochMetrics, timing: EpochTiming) -> None:
        """What it gave, and how fast."""
        text = f"epoch {metrics.epoch}/{self._epochs}  loss {metrics.training_loss:.4f}"
        if self._bar:
            self._bar.update(self._bar.task_ids[0], note=f"{text}  {_in_validation(metrics)}")
        else:
            images_per_second = self._images / timing.training_seconds
            self.say(f"{text}  validation {_in_validation(metrics)}  {images_per_second:,.0f} images/s")


def _in_validation(metrics: EpochMetrics) -> str:
    right = "" if metrics.validation_accuracy is None else f", {metrics.validation_accuracy:.2%}"
    return f"{metrics.validation_loss:.4f}{right}"


def _training_bar(trainer: Trainer) -> Progress:
    class _Polled(Progress):
        """Reads where training is when it draws, so that the training loop never has to tell it."""

        def get_renderable(self):  # type: ignore[no-untyped-def]
            """What rich draws."""
            for task in self.tasks:
                self.update(task.id, completed=trainer.steps_done)
            return super().get_renderable()

    return _Polled(
        TextColumn("{task.description}"),
        BarColumn(bar_width=16),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        refresh_per_second=_REFRESHES_PER_SECOND,
    )
