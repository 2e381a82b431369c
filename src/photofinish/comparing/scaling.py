"""How the speed-up grows with the batch, with a layer's width, or with how many devices share a training.

Experiments that differ in nothing but one such size are a series: from which size on is the GPU faster? No torch here.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np

from photofinish.comparing.pairs import Comparison
from photofinish.comparing.speedups import (
    LEAST_VALUES,
    FloatArray,
    Interval,
    Speedup,
    drawn_medians,
    epoch_speedup,
    percentile_interval,
    run_margin,
)
from photofinish.config.experiment import Experiment
from photofinish.results.records import DeviceLabel, Timings

_LAYERS = {"hidden": "units of hidden layer", "channels": "channels of convolution"}


@dataclass(frozen=True)
class Point:
    """One size."""

    x: int
    experiment: str
    speedup: Speedup
    """of an epoch with its data"""
    timings: tuple[Timings, Timings]
    """the CPU's and the GPU's"""


@dataclass(frozen=True)
class BreakEven:
    """The size from which on the GPU is faster at every larger size that was tried."""

    size: float | None
    """None where the speed-up doesn't cross 1; `finding` says why"""
    low: float | None
    """of its 95 % interval; None also where that reaches beyond the sizes tried"""
    high: float | None
    finding: str


@dataclass(frozen=True)
class Series:
    """Experiments that differ in one size alone."""

    name: str
    x_name: str
    points: tuple[Point, ...]
    """in the order of their sizes, two at least"""

    @cached_property
    def break_even(self) -> BreakEven:
        """Size from which on the GPU is faster, with an interval if there are enough epochs."""
        sizes = [float(point.x) for point in self.points]
        size = float(crossing(sizes, np.array([[point.speedup.ratio for point in self.points]]))[0])
        if not np.isfinite(size):
            return BreakEven(None, None, None, self._why_none())
        both = [point.timings for point in self.points]
        fewest = min(len(side.all_epochs) for sides in both for side in sides)
        if fewest < LEAST_VALUES:
            why = f"no interval, so none is sure: {fewest} epochs somewhere, and it takes {LEAST_VALUES}"
            return BreakEven(size, None, None, f"by the medians alone, from {size:,.3g} on; {why}")
        medians = [drawn_medians(side.epoch_seconds, seed) for seed, side in enumerate(chain.from_iterable(both))]
        drawn = np.stack(medians[::2], axis=1) / np.stack(medians[1::2], axis=1)
        # The ends with every ratio off by what a run may be, which is as far as they can go.
        margins = np.array([run_margin(cpu, gpu) for cpu, gpu in both])
        low, _ = percentile_interval(crossing(sizes, drawn * margins))
        _, high = percentile_interval(crossing(sizes, drawn / margins))
        if not (np.isfinite(low) or np.isfinite(high)):
            wide = "but the interval is wider than the sizes tried"
            return BreakEven(size, None, None, f"none to be told: from {size:,.3g} on by the medians, {wide}")
        from_ = f"{low:,.3g}" if np.isfinite(low) else f"below {sizes[0]:,.0f}"
        to = f"{high:,.3g}" if np.isfinite(high) else f"above {sizes[-1]:,.0f}"
        told = f"the GPU is the faster one from {size:,.3g} on (95 % interval {from_} to {to})"
        return BreakEven(size, low if np.isfinite(low) else None, high if np.isfinite(high) else None, told)

    def _why_none(self) -> str:
        span = f"from {self.points[0].x:,} to {self.points[-1].x:,}"
        sure = {point.speedup.is_faster for point in self.points}
        if len(sure) == 1 and None not in sure:
            which = "faster" if True in sure else "slower"
            return f"no crossing: the GPU is the {which} one at every size tried, {span}"
        if len({point.speedup.ratio >= 1 for point in self.points}) == 1:
            return f"none to be told: at some sizes {span} no winner is named"
        return f"none: the GPU is the faster one at some sizes {span}, but not at the largest"


def all_series(pairs: Iterable[Comparison]) -> list[Series]:
    """Group experiments that differ in one size alone."""
    alike: dict[tuple[str, str], dict[int, Point]] = defaultdict(dict)
    for pair in pairs:
        if compared := pair.compared:
            timings = compared.cpu.timings, compared.gpu.timings
            for x_name, x, rest in _sizes(pair.cpu.record.experiment):
                alike[x_name, rest].setdefault(x, Point(x, pair.experiment, compared.speedups["epoch"], timings))
    series: dict[tuple[str, str], Series] = {}
    for (x_name, _), sized in alike.items():
        if len(sized) > 1:
            points = tuple(point for _, point in sorted(sized.items()))
            # What their names have in common, word by word: lenet-100-adam and lenet-200-adam are lenet-adam.
            words = [point.experiment.replace("_", "-").split("-") for point in points]
            same = [each[0] for each in zip(*words, strict=False) if len(set(each)) == 1]
            name = "-".join(same) or f"{points[0].experiment} and the like"
            if (name, x_name) in series:
                name = f"{name} ({points[0].experiment} and the like)"
            series[name, x_name] = Series(name, x_name, points)
    return list(series.values())


def crossing(sizes: Sequence[float], ratios: FloatArray) -> FloatArray:
    """Return the size from which on ratios stay at 1 or above, on straight lines between logarithms.

    `ratios` has a row for each draw. -inf where they are never below 1, inf where the last one is.
    """
    log_x, log_ratio = np.log(sizes), np.log(ratios)
    below = log_ratio < 0
    last = log_ratio.shape[1] - 1
    before = last - np.argmax(below[:, ::-1], axis=1)  # the last size with a ratio below 1
    inside, row = below.any(axis=1) & (before < last), np.arange(len(ratios))
    left = np.where(inside, before, 0)
    low, high = log_ratio[row, left], log_ratio[row, left + 1]
    rise = np.where(inside, high - low, 1.0)
    found = np.exp(log_x[left] - low / rise * (log_x[left + 1] - log_x[left]))
    return np.where(inside, found, np.where(below[:, last], np.inf, -np.inf))


def _sizes(experiment: Experiment) -> Iterator[tuple[str, int, str]]:
    """Yield the name and value of each size, and all other settings as a key."""
    settings = experiment.model_dump(mode="json")
    model = settings["model"]
    yield "batch size", settings["batch_size"], json.dumps({**settings, "batch_size": None}, sort_keys=True)
    for key, noun in _LAYERS.items():
        widths: list[int] = model.get(key) or []
        for index, width in enumerate(widths):
            others = {**model, key: [*widths[:index], None, *widths[index + 1 :]]}
            yield f"{noun} {index + 1}", width, json.dumps({**settings, "model": others}, sort_keys=True)


@dataclass(frozen=True)
class Shared:
    """Training that several devices shared, compared with that of the fewest."""

    experiment: str
    device: DeviceLabel
    machine: str | None
    """the one whose record it is; None for this project's own result"""
    timings: Timings
    fewest: int
    speedup: Speedup
    """of an epoch with its data"""

    @property
    def count(self) -> int:
        """GPUs, or processes on the CPU."""
        return self.timings.device_count

    @property
    def efficiency(self) -> float:
        """Speed-up per device, relative to the fewest devices."""
        return self.speedup.ratio * self.fewest / self.count

    @property
    def efficiency_interval(self) -> Interval | None:
        """95 % interval of `efficiency`, or None without one of the speed-up."""
        if self.speedup.interval is None or self.count == self.fewest:
            return None
        low, high = (end * self.fewest / self.count for end in self.speedup.interval)
        return low, high


def shared_trainings(pairs: Iterable[Comparison]) -> list[Shared]:
    """Compare trainings of one experiment that different numbers of devices shared."""
    found = []
    for pair in pairs:
        by_kind: dict[tuple[DeviceLabel, str, int | None], dict[int, tuple[str | None, Timings]]] = defaultdict(dict)
        runs: list[tuple[DeviceLabel, str | None, Timings]] = [(run.device, None, run.timings) for run in pair.trained]
        references = [each.reference for each in pair.elsewhere]
        runs += [(each.training.device, each.machine, each.timings) for each in references]
        for device, machine, timings in runs:  # its own first, which is then the one that counts
            threads = timings.host.threads if device == "cpu" else None  # of each process
            by_kind[device, timings.device_name, threads].setdefault(timings.device_count, (machine, timings))
        for (device, *_), by_count in by_kind.items():
            if len(by_count) > 1:
                fewest = min(by_count)
                _, of_fewest = by_count[fewest]
                found += [
                    Shared(pair.experiment, device, machine, timings, fewest, epoch_speedup(of_fewest, timings))
                    for _, (machine, timings) in sorted(by_count.items())
                ]
    return found
