"""How the speed-up grows with the batch, or with a layer's width, and from which size on the GPU is faster.

Experiments that differ in nothing but one such size are a series. No torch here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from photofinish.comparing.speedups import (
    LEAST_VALUES,
    FloatArray,
    Interval,
    Speedup,
    drawn_medians,
    epoch_seconds,
    epoch_speedup,
    new_draws,
    percentile_interval,
    run_margin,
)
from photofinish.comparing.table import DeviceResult, Trained

COLUMNS = ("series", "x_name", "x", "experiment", "speedup", "speedup_low", "speedup_high")
_LAYERS = {"hidden": "units of hidden layer", "channels": "channels of convolution"}


@dataclass(frozen=True)
class Point:
    x: int
    experiment: str
    cpu: Trained
    gpu: Trained

    @cached_property
    def speedup(self) -> Speedup:
        """Of an epoch with its data."""
        return epoch_speedup(self.cpu.timings, self.gpu.timings)


@dataclass(frozen=True)
class Series:
    name: str
    x_name: str
    points: tuple[Point, ...]
    """in the order of their sizes, two at least"""


@dataclass(frozen=True)
class BreakEven:
    """The size from which on the GPU is faster at every larger size that was tried."""

    series: str
    x_name: str
    break_even: float | None
    """None where the speed-up doesn't cross 1; `finding` says why"""
    low: float | None
    """of its 95 % interval; None also where that reaches beyond the sizes tried"""
    high: float | None
    finding: str


def scaling_table(results: Sequence[DeviceResult]) -> pd.DataFrame:
    """A row for each size of each series."""
    rows = []
    for series in all_series(results):
        for point in series.points:
            low, high = point.speedup.interval or (None, None)
            rows.append((series.name, series.x_name, point.x, point.experiment, point.speedup.ratio, low, high))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def break_evens(results: Sequence[DeviceResult]) -> list[BreakEven]:
    """One for each series."""
    return [_break_even(series) for series in all_series(results)]


def break_even_table(results: Sequence[DeviceResult]) -> pd.DataFrame:
    columns = [field.name for field in fields(BreakEven)]
    return pd.DataFrame([astuple(found) for found in break_evens(results)], columns=columns)


def all_series(results: Sequence[DeviceResult]) -> list[Series]:
    """None where every experiment is the only one of its kind: one size tells nothing of others."""
    alike: dict[tuple[str, str], dict[int, Point]] = {}
    for cpu, gpu in _pairs(results):
        for x_name, x, rest in _sizes(cpu):
            alike.setdefault((x_name, rest), {}).setdefault(x, Point(x, cpu.experiment, cpu, gpu))
    found = [(x_name, sorted(points.items())) for (x_name, _), points in alike.items() if len(points) > 1]
    series: dict[tuple[str, str], Series] = {}
    for x_name, sized in found:
        points = tuple(point for _, point in sized)
        name = _common_name([point.experiment for point in points])
        if (name, x_name) in series:
            name = f"{name} ({points[0].experiment} and the like)"
        series[name, x_name] = Series(name, x_name, points)
    return list(series.values())


def crossing(sizes: Sequence[float], ratios: FloatArray) -> FloatArray:
    """From which size on the ratios stay at 1 or above, straight lines drawn between the logarithms of neighbours.

    `ratios` has a row for each draw. -inf where they are never below 1, inf where the last one is.
    """
    log_x, log_ratio = np.log(np.asarray(sizes, dtype=float)), np.log(ratios)
    below = log_ratio < 0
    last = log_ratio.shape[1] - 1
    before = last - np.argmax(below[:, ::-1], axis=1)  # the last size with a ratio below 1
    inside, row = below.any(axis=1) & (before < last), np.arange(len(ratios))
    left = np.where(inside, before, 0)
    low, high = log_ratio[row, left], log_ratio[row, left + 1]
    rise = np.where(inside, high - low, 1.0)
    found = np.exp(log_x[left] - low / rise * (log_x[left + 1] - log_x[left]))
    return np.where(inside, found, np.where(below[:, last], np.inf, -np.inf))


def _break_even(series: Series) -> BreakEven:
    sizes = [float(point.x) for point in series.points]
    ratios = np.array([point.speedup.ratio for point in series.points])
    found = float(crossing(sizes, ratios[np.newaxis])[0])
    if not np.isfinite(found):
        return BreakEven(series.name, series.x_name, None, None, None, _no_crossing(series, ratios))
    fewest = min(len(epoch_seconds(side.timings)) for point in series.points for side in (point.cpu, point.gpu))
    if fewest < LEAST_VALUES:
        why = f"no interval, so none is sure: {fewest} epochs somewhere, and it takes {LEAST_VALUES}"
        told = f"by the medians alone, from {found:,.3g} on; {why}"
        return BreakEven(series.name, series.x_name, found, None, None, told)
    low, high = _interval(series, sizes)
    if not (np.isfinite(low) or np.isfinite(high)):
        told = f"none to be told: from {found:,.3g} on by the medians, but the interval is wider than the sizes tried"
        return BreakEven(series.name, series.x_name, found, None, None, told)
    bounds = [f"{low:,.3g}" if np.isfinite(low) else f"below {sizes[0]:,.0f}"]
    bounds.append(f"{high:,.3g}" if np.isfinite(high) else f"above {sizes[-1]:,.0f}")
    told = f"the GPU is the faster one from {found:,.3g} on (95 % interval {' to '.join(bounds)})"
    return BreakEven(series.name, series.x_name, found, _finite(low), _finite(high), told)


def _interval(series: Series, sizes: Sequence[float]) -> Interval:
    """Of what the epochs vary; its ends with every ratio off by what a run may be, which is as far as they can go."""
    random = new_draws()
    columns = [
        drawn_medians(epoch_seconds(point.cpu.timings), random)
        / drawn_medians(epoch_seconds(point.gpu.timings), random)
        for point in series.points
    ]
    drawn = np.stack(columns, axis=1)
    margins = np.array([run_margin(point.cpu.timings, point.gpu.timings) for point in series.points])
    low, _ = percentile_interval(crossing(sizes, drawn * margins))
    _, high = percentile_interval(crossing(sizes, drawn / margins))
    return low, high


def _no_crossing(series: Series, ratios: FloatArray) -> str:
    span = f"from {series.points[0].x:,} to {series.points[-1].x:,}"
    sure = {point.speedup.is_faster for point in series.points}
    if sure == {True}:
        return f"no crossing: the GPU is the faster one at every size tried, {span}"
    if sure == {False}:
        return f"no crossing: the GPU is the slower one at every size tried, {span}"
    if (ratios >= 1).all() or (ratios < 1).all():
        return f"none to be told: at some sizes {span} no winner is named"
    return f"none: the GPU is the faster one at some sizes {span}, but not at the largest"


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _pairs(results: Sequence[DeviceResult]) -> Iterator[tuple[Trained, Trained]]:
    by_place = {(each.experiment, each.device): each for each in results if isinstance(each, Trained)}
    for (name, device), result in by_place.items():
        gpu = by_place.get((name, "gpu"))
        if device == "cpu" and gpu:
            yield result, gpu


def _sizes(result: Trained) -> Iterator[tuple[str, int, str]]:
    """Each size of the experiment: its name, its value, and all other settings, by which the like of it are found."""
    settings = result.record.experiment.model_dump(mode="json")
    yield "batch size", settings["batch_size"], _text({**settings, "batch_size": None})
    model = settings["model"]
    for key, noun in _LAYERS.items():
        widths: list[int] = model.get(key) or []
        for index, width in enumerate(widths):
            others = {**model, key: [*widths[:index], None, *widths[index + 1 :]]}
            yield f"{noun} {index + 1}", width, _text({**settings, "model": others})


def _text(settings: dict[str, Any]) -> str:
    return json.dumps(settings, sort_keys=True)


def _common_name(names: list[str]) -> str:
    """What the names have in common, word by word: lenet-100-adam and lenet-200-adam are lenet-adam."""
    words = [name.replace("_", "-").split("-") for name in names]
    same = [each[0] for each in zip(*words, strict=False) if len(set(each)) == 1]
    return "-".join(same) or f"{names[0]} and the like"
