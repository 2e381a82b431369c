"""Speed-ups over batch size, layer width or number of devices.

Experiments that differ in one such size form a series with a break-even size.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from photofinish.answer.candidates import Answer
from photofinish.answer.comparison import Comparison
from photofinish.answer.decision import Decision
from photofinish.answer.rented_gpu import of_one_training
from photofinish.answer.speedups import Speedup, epoch_speedup
from photofinish.answer.uncertainty import Interval
from photofinish.config.experiment import Experiment
from photofinish.nested import dotted
from photofinish.results.job_times import JobTimes
from photofinish.results.records import DeviceLabel

_LAYERS = {"hidden": "units of hidden layer", "channels": "channels of convolution"}


@dataclass(frozen=True)
class SizePoint:
    x: int
    pair: Comparison

    @property
    def speedup(self) -> Speedup:
        """Speed-up of an epoch."""
        assert self.pair.compared
        return self.pair.compared.speedups["epoch"]


@dataclass(frozen=True)
class BreakEven:
    """Size above which the GPU is faster, within the sizes that were tried."""

    size: float | None
    """None if the GPU is slower at the largest size, or at no size."""
    low: float | None = None
    """Lower end of the interval, if it lies within the sizes."""
    high: float | None = None
    is_known: bool = False
    """True if there is an interval, whose ends may lie beyond the sizes."""


@dataclass(frozen=True)
class Series:
    x_name: str
    points: tuple[SizePoint, ...]
    """At least two points, in the order of their sizes."""

    @cached_property
    def break_even(self) -> BreakEven:
        """Break-even size, and the sizes at which both ends of the speed-up cross 1."""
        sizes = [point.x for point in self.points]
        size = crossing(sizes, [point.speedup.ratio for point in self.points])
        ends = [point.speedup.interval for point in self.points if point.speedup.interval]
        if size is None or len(ends) < len(sizes):
            return BreakEven(size)
        slow, fast = zip(*ends, strict=True)
        return BreakEven(size, crossing(sizes, fast), crossing(sizes, slow), is_known=True)


def all_series(pairs: Iterable[Comparison]) -> list[Series]:
    """Group experiments that differ in one size only."""
    groups: dict[tuple[str, str], dict[int, SizePoint]] = defaultdict(dict)
    for pair in pairs:
        settings = pair.cpu.settings if pair.compared else None
        for x_name, x, others in _sizes(settings) if settings else ():
            groups[x_name, others].setdefault(x, SizePoint(x, pair))
    return [
        Series(x_name, tuple(point for _, point in sorted(by_size.items())))
        for (x_name, _), by_size in groups.items()
        if len(by_size) > 1
    ]


def crossing(sizes: Sequence[int], ratios: Sequence[float]) -> float | None:
    """Return the size above which ratios are at least 1, or None if they don't cross it.

    Interpolates between logarithms.
    """
    below = [index for index, ratio in enumerate(ratios) if ratio < 1]
    if not below or below[-1] == len(ratios) - 1:
        return None
    left, right = below[-1], below[-1] + 1  # the last size with a ratio below 1, and the next
    # An end that is not known may be 0 or infinite.
    low, high = (math.log(min(max(1e-9, ratios[index]), 1e9)) for index in (left, right))
    return float(sizes[left] * (sizes[right] / sizes[left]) ** (low / (low - high)))


def _sizes(experiment: Experiment) -> Iterator[tuple[str, int, str]]:
    """Yield the name and value of each size, and all other settings as a key."""
    settings = experiment.model_dump(mode="json")
    model, batch_size = settings["model"], settings["batch_size"]
    yield "batch size", batch_size, json.dumps({**settings, "batch_size": None}, sort_keys=True)
    for key, noun in _LAYERS.items():
        widths: list[int] = model.get(key) or []
        for index, width in enumerate(widths):
            others = {**model, key: [*widths[:index], None, *widths[index + 1 :]]}
            key_of_others = json.dumps({**settings, "model": others}, sort_keys=True)
            yield f"{noun} {index + 1}", width, key_of_others


@dataclass(frozen=True)
class Cell:
    """Speed-up of one experiment in a grid, or its bound."""

    figure: float
    is_bound: bool
    answer: Answer


@dataclass(frozen=True)
class Grid:
    """Experiments that differ in two settings, with an experiment for each pair of values."""

    row_key: str
    column_key: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: dict[tuple[str, str], Cell]


def grid(pairs: Sequence[Comparison], decisions: Sequence[Decision]) -> Grid | None:
    """Return the experiments as a grid, or None if not exactly two settings vary."""
    of_each = [pair.cpu.settings for pair in pairs]
    settings = [dict(dotted(each.model_dump(mode="json"))) for each in of_each if each]
    values: dict[str, list[str]] = defaultdict(list)
    for key in dict.fromkeys(key for each in settings for key in each):
        values[key] = list(dict.fromkeys(str(each.get(key)) for each in settings))
    varying = [key for key, found in values.items() if len(found) > 1]
    if len(varying) != 2:
        return None
    row_key, column_key = sorted(varying, key=lambda key: len(values[key]))
    cells = {}
    for pair, decision, each in zip(pairs, decisions, settings, strict=True):
        speedup = of_one_training(pair, decision.worth).speedup
        figure = speedup or pair.bounds.job.as_measured
        place = str(each.get(row_key)), str(each.get(column_key))
        cells[place] = Cell(figure, speedup is None, decision.answer)
    rows, columns = values[row_key], values[column_key]
    if len(cells) < len(rows) * len(columns):
        return None
    return Grid(row_key, column_key, tuple(rows), tuple(columns), cells)


@dataclass(frozen=True)
class Shared:
    """Training shared by several devices, compared to the training with the fewest devices."""

    experiment: str
    device: DeviceLabel
    machine: str | None
    """Machine of the record, or None for this project's result."""
    timings: JobTimes
    fewest: int
    speedup: Speedup

    @property
    def count(self) -> int:
        """Number of GPUs, or of processes on the CPU."""
        return self.timings.device_count

    @property
    def efficiency(self) -> float:
        return self.speedup.ratio * self.fewest / self.count

    @property
    def efficiency_interval(self) -> Interval | None:
        """Interval of `efficiency`, or None if the speed-up has no interval."""
        if self.speedup.interval is None or self.count == self.fewest:
            return None
        low, high = self.speedup.interval
        return low * self.fewest / self.count, high * self.fewest / self.count


def shared_trainings(pairs: Iterable[Comparison]) -> list[Shared]:
    """Compare trainings of one experiment on different numbers of devices."""
    found = []
    for pair in pairs:
        runs: list[tuple[DeviceLabel, str | None, JobTimes]] = []
        runs += [(run.device, None, run.timings) for run in pair.trained]
        runs += [(each.training.device, each.machine, each.timings) for each in pair.references]
        # This project's results come first. Of equal counts, only the first is kept.
        groups: dict[tuple[DeviceLabel, str, int | None], dict[int, tuple[str | None, JobTimes]]]
        groups = defaultdict(dict)
        for device, machine, timings in runs:
            threads = timings.host.threads if device == "cpu" else None
            group = groups[device, timings.device_name, threads]
            group.setdefault(timings.device_count, (machine, timings))
        for (device, *_), by_count in groups.items():
            if len(by_count) > 1:
                fewest = min(by_count)
                _, baseline = by_count[fewest]
                for _, (machine, timings) in sorted(by_count.items()):
                    speedup = epoch_speedup(baseline, timings)
                    shared = Shared(pair.experiment, device, machine, timings, fewest, speedup)
                    found.append(shared)
    return found
