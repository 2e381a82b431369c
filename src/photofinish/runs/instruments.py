"""Instruments that watch a training: load, memory, and the loop's overhead."""

from __future__ import annotations

from typing import Self

from photofinish.machine.host_memory import peak_host_memory_bytes
from photofinish.machine.load import LoadWindow
from photofinish.results import passed_seconds
from photofinish.results.pass_times import Overhead, Readings
from photofinish.runs.training import Training


class Instruments:
    """Instruments of a run in one process, read between epochs only.

    A `with` block watches the first training. `monitor` also watches the load of its repeats.
    """

    overhead: Overhead
    readings: Readings
    """Readings of the first training."""

    def __init__(self, training: Training) -> None:
        self.monitor = training.setup.load_monitor()
        self._training, self._epochs_before, self._started_seconds = training, 0, 0.0

    def __enter__(self) -> Self:
        self._epochs_before = self._training.trainer.progress.epochs_done
        self.monitor.begin()
        self._started_seconds = self._training.spent_seconds()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            return
        training, team = self._training, self._training.team
        loop_seconds = training.spent_seconds() - self._started_seconds
        passes = training.trainer.progress.timings[self._epochs_before :]
        self.monitor.training_ended()
        self.overhead = Overhead(
            seconds=max(0.0, loop_seconds - passed_seconds(passes)),
            checkpoint_seconds=training.checkpoint_seconds,
        )
        host_bytes = team.all_gather_object(peak_host_memory_bytes())
        self.readings = Readings(
            peak_memory_bytes=team.peak_memory_bytes(),
            peak_host_memory_bytes=max(filter(None, host_bytes), default=None),
        )

    @property
    def load(self) -> tuple[LoadWindow, ...]:
        """Load of the training, then of its repeats."""
        return tuple(self.monitor.windows)
