"""Watched part of a script's training: the lines that hooks wrote, and figures of them."""

from __future__ import annotations

import json
import math
import operator
from array import array
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from photofinish.asking.lengths import STEPS, TRAINER
from photofinish.asking.watcher import main_optimizer
from photofinish.comparing.times import students_t

_COLUMNS = 9
_WARM_UP = 2
"""Number of periods after the first step that are left out."""
_MOST_PARTS = 10
LATER_STEPS = 10
"""Number of steps in the second epoch that show whether the first epoch is slower."""
_SLOWER = 0.1
"""Smallest relative difference for which the first epoch counts as slower."""
_USUAL = 0.5
"""A property of a larger share of the periods is a property of a step."""

FloatArray = NDArray[np.float64]


def first_epoch_excess(first_seconds: float, later_seconds: float) -> float:
    """Return how much longer the first epoch takes than later epochs, or 0 if it is as fast."""
    excess_seconds = first_seconds - later_seconds
    return excess_seconds if excess_seconds > _SLOWER * later_seconds else 0.0


class Loader(NamedTuple):
    """Data loader of the script."""

    batches: float | None
    """Number of batches in an epoch, a smaller last batch as a fraction. None without a length."""
    workers: int


class Length(NamedTuple):
    """Length of the whole training."""

    name: str
    value: float
    by: str
    """Source of the length: `--epochs` or another option, or `the trainer`."""

    @property
    def is_steps(self) -> bool:
        return self.name in STEPS

    @property
    def is_from_options(self) -> bool:
        return self.by != TRAINER

    @property
    def is_perhaps_a_start(self) -> bool:
        """Return True for `--epoch`: some scripts begin with this epoch."""
        return self.name == "epoch"


class WatchedScript:
    """Lines that the hooks wrote so far. `read` adds new lines."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._places: dict[Path, int] = {}
        self._processes: dict[Path, Process] = {}

    def read(self) -> None:
        """Read the lines that were added since the last call."""
        for path in self._folder.glob("*.jsonl"):
            process = self._processes.setdefault(path, Process())
            with path.open(encoding="utf-8") as file:
                file.seek(self._places.get(path, 0))
                text = file.read()
            whole, newline, _ = text.rpartition("\n")
            self._places[path] = self._places.get(path, 0) + len((whole + newline).encode())
            for line in whole.splitlines():
                process.add(json.loads(line))

    @property
    def process(self) -> Process | None:
        """Process that trains, else a process that imported torch, else None."""
        processes = [*self._processes.values()]
        key = operator.attrgetter("taken_steps", "has_torch")
        return max(processes, key=key, default=None)


class Process:
    """Lines of one process of the script."""

    def __init__(self) -> None:
        self._periods = array("d")
        """Periods of nine numbers each.

        In this order: optimizer, end, wait, batches, first forward pass, 1 if it validates, number
        of a loader that began (from 1), 1 if it is counted, loader.
        """
        self.steps: list[int] = []
        self.lengths: list[Length] = []
        """Lengths that the process has, from a Trainer or argparse."""
        self.on_command_line: list[Length] = []
        self.loaders: dict[int, Loader] = {}
        self.counts: dict[str, Any] | None = None
        self.device = "cpu"
        self.seen = 0, 0
        """Numbers of batches and forward passes before an optimizer's first step."""
        self.unseen: str | None = None
        """Reason why the script takes steps that no hook sees."""
        self.has_torch = False
        self.others: dict[str, float] = {}
        """Times at which libraries were imported that train without torch."""

    def add(self, line: Any) -> None:
        if isinstance(line, list):
            self.steps[line[0]] += 1
            self._periods.extend(math.nan if value is None else value for value in line)
            return
        kind = line.pop("kind")
        if kind == "optimizer":
            self.steps.append(0)
            self.device = line["device"]
        elif kind == "loader":
            self.loaders[line["loader"]] = Loader(line["batches"], line["workers"])
        elif kind == "length":
            self.lengths.append(Length(**line))
        elif kind == "counts":
            self.counts = line
        elif kind == "seen":
            self.seen = line["batches"], line["forward_passes"]
        elif kind == "unseen":
            self.unseen = line["why"]
        elif kind == "torch":
            self.has_torch = True
        elif kind == "other":
            self.others[line["name"]] = line["at"]

    def imported_instead(self, before: float) -> list[str]:
        """Return the libraries imported before a time, if torch was not imported."""
        return [name for name, at in self.others.items() if at < before and not self.has_torch]

    @property
    def taken_steps(self) -> int:
        return sum(self.steps)

    @property
    def first_step_at(self) -> float | None:
        """Time of an optimizer's first step, by the performance counter."""
        return self._periods[1] if self._periods else None

    @property
    def length(self) -> Length | None:
        """Length of the whole job, from a Trainer, else the command line, else argparse."""
        lengths = [
            length
            for source in (self.on_command_line, self.lengths)
            for length in sorted(source, key=lambda each: not each.is_steps)
        ]
        key = operator.attrgetter("is_from_options", "is_perhaps_a_start")
        return min(lengths, key=key, default=None)

    def seconds_until_second_epoch(self, figures: Figures) -> float:
        """Return the time until the end of the first epoch and some steps of the second.

        Returns 0 if these are over, or if an epoch's length is unknown.
        """
        if figures.first_epoch_steps:
            steps = figures.first_epoch_steps
        elif figures.loader is not None and (batches := self.loaders[figures.loader].batches):
            steps = math.ceil(batches / figures.batches_per_step)
        else:
            return 0.0
        return max(0, steps + LATER_STEPS - figures.steps) * figures.step_seconds

    def figures(self) -> Figures | None:
        """Return the figures of a step, or None before a step could be timed."""
        if not self._periods:
            return None
        rows = np.array(self._periods).reshape(-1, _COLUMNS)
        figures = Figures(_merged(rows, main_optimizer(self.steps)))
        return figures if figures.part_seconds else None


def _merged(rows: FloatArray, main: int) -> FloatArray:
    """Return a row for each step of the main optimizer. Other optimizers' steps are part of it."""
    ends = np.flatnonzero(rows[:, 0] == main)
    starts = np.concatenate([[0], ends[:-1] + 1])
    rows = rows[: ends[-1] + 1]
    merged = rows[ends]
    for column, combine in ((2, np.add), (3, np.add), (4, np.fmin), (8, np.fmax)):
        merged[:, column] = combine.reduceat(rows[:, column], starts)
    for column in (5, 6, 7):
        merged[:, column] = np.maximum.reduceat(rows[:, column], starts)
    return merged


class Figures:
    """Figures of the steps in a sample. The main optimizer ends a step."""

    def __init__(self, rows: FloatArray) -> None:
        self._rows = rows
        self.first_step_at = float(rows[0, 1])
        self.last_step_at = float(rows[-1, 1])
        self.steps = len(rows)
        self._seconds = np.diff(rows[:, 1])
        flags = [self._unusual(rows[1:, column]) for column in (5, 6)]
        self._validates, self._begins_loader = flags
        self._is_counted = rows[1:, 7] > 0
        is_steady = ~(self._validates | self._begins_loader | self._is_counted)
        if is_steady.sum() > _WARM_UP:
            is_steady[:_WARM_UP] = False
        number = 0 if self.loader is None else self.loader + 1
        epochs = np.flatnonzero(self._begins_loader & (rows[1:, 6] == number))
        self.first_epoch_steps = int(epochs[0]) + 1 if len(epochs) else None
        """Number of steps in the first epoch, or None before the second epoch."""
        self.first_epoch_seconds = 0.0
        """Time that only the first epoch took, for example to fill a cache."""
        self._steady = np.flatnonzero(is_steady)
        if self.first_epoch_steps:
            self._leave_out_first_epoch(self.first_epoch_steps)

    def _leave_out_first_epoch(self, steps: int) -> None:
        """Use steady steps of later epochs only, if the first epoch's steps are slower."""
        early, later = self._steady[self._steady < steps], self._steady[self._steady >= steps]
        if len(early) and len(later) >= LATER_STEPS:
            early_seconds, later_seconds = self._seconds[early].mean(), self._seconds[later].mean()
            if excess_seconds := first_epoch_excess(early_seconds, later_seconds):
                self.first_epoch_seconds = float(steps * excess_seconds)
                self._steady = later

    @staticmethod
    def _unusual(flags: FloatArray) -> NDArray[np.bool_]:
        """Return the flags, or no flags if most periods have one."""
        return (flags > 0) & (flags.mean() < _USUAL if len(flags) else False)

    @cached_property
    def part_seconds(self) -> list[float]:
        """Mean step in each of up to ten consecutive parts."""
        return self._parts(self._seconds)

    @cached_property
    def part_waiting_seconds(self) -> list[float]:
        """Mean wait of a step for its batches, in each part."""
        return self._parts(self._waiting)

    def _parts(self, values: FloatArray) -> list[float]:
        values = values[self._steady]
        if not len(values):
            return []
        parts = np.array_split(values, min(_MOST_PARTS, len(values)))
        return [float(part.mean()) for part in parts]

    @property
    def step_seconds(self) -> float:
        """Mean duration of a step."""
        return float(self._seconds[self._steady].mean())

    @property
    def quickest_step_seconds(self) -> float:
        """Time of the quickest tenth of the steps."""
        return float(np.quantile(self._seconds[self._steady], 0.1))

    @property
    def relative_error(self) -> float:
        """Half width of the interval of a step's mean time, as a share of the mean."""
        means = self.part_seconds
        if len(means) < _MOST_PARTS:
            return float("inf")
        error = float(np.std(means, ddof=1)) / math.sqrt(len(means))
        return students_t(len(means) - 1) * error / self.step_seconds

    @property
    def _waiting(self) -> FloatArray:
        """Time that each period waited for its batches, from a loader or from the script's code."""
        waiting = self._rows[1:, 2]
        if self.loader is not None:
            return waiting
        making = self._rows[1:, 4] - self._rows[:-1, 1]
        return np.where(np.isnan(making), 0.0, np.maximum(making, 0.0))

    @property
    def loader(self) -> int | None:
        """Number of the loader that gave most steps their batches."""
        loaders = self._rows[:, 8]
        loaders = loaders[~np.isnan(loaders)].astype(int)
        return int(np.bincount(loaders).argmax()) if len(loaders) else None

    @property
    def batches_per_step(self) -> float:
        return float(self._rows[1:, 3][self._steady].mean())

    @property
    def waiting_share(self) -> float:
        """Share of a step's time spent waiting for batches."""
        return float(self._waiting[self._steady].mean()) / self.step_seconds

    @property
    def validation_step_seconds(self) -> float:
        """Time of validation for each training step, or 0 without validation."""
        return self._per_step(self._excess - self._excess_waiting, self._validates)

    @property
    def epoch_start_step_seconds(self) -> float:
        """Time of the starts of epochs per step, without validation."""
        starts = self._begins_loader & ~self._validates
        return self.epoch_wait_step_seconds + self._per_step(
            self._excess - self._excess_waiting, starts
        )

    @property
    def epoch_wait_step_seconds(self) -> float:
        """Time per step in which starts of epochs wait for the first batch."""
        return self._per_step(self._excess_waiting, self._begins_loader)

    @property
    def _excess(self) -> FloatArray:
        """Time of each period in excess of a step's time."""
        return np.maximum(0.0, self._seconds - self.step_seconds)

    @property
    def _excess_waiting(self) -> FloatArray:
        """Wait of each period in excess of a step's wait."""
        if self.loader is None:
            return np.zeros_like(self._seconds)
        usual_seconds = self._waiting[self._steady].mean()
        excess: FloatArray = np.maximum(0.0, self._waiting - usual_seconds)
        return np.minimum(excess, self._excess)

    def _per_step(self, seconds: FloatArray, flags: NDArray[np.bool_]) -> float:
        """Return the time of these periods, divided by the steps until the last period."""
        places = np.flatnonzero(flags & ~self._is_counted)
        return float(seconds[places].sum() / (places[-1] + 1)) if len(places) else 0.0

    @property
    def counted_seconds(self) -> float:
        """Time that counting steps took."""
        counted = self._seconds[self._is_counted]
        return float(counted.sum() - len(counted) * self.step_seconds)
