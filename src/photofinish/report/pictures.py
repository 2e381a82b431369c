"""The report's pictures: speed-ups, break-evens, the parts of a step, learning curves, confusion matrices."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from itertools import cycle
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.ticker import MaxNLocator

from photofinish.comparing.speedups import NAMES
from photofinish.report.drawing import (
    DEVICE_COLOURS,
    DEVICE_LINES,
    DEVICE_MARKERS,
    INK,
    PAPER,
    SOFT,
    WIDTH_INCHES,
    Drawing,
    Picture,
    line_at_one,
    logarithmic,
)
from photofinish.wording import listed, ratio, seconds

_ROW_INCHES = 0.36
_LEAST_SPAN = 2.0
"""the axis reaches as far as this on each side of 1, so that a difference of a few percent looks small"""


def speedup_pictures(speedups: pd.DataFrame) -> list[Picture]:
    """One for each kind, drawn to the same scale: a row for each experiment."""
    limits = _limits(speedups[["speedup", "low", "high"]].to_numpy().ravel())
    return [_speedups(str(kind), part, limits) for kind, part in speedups.groupby("of", sort=False)]


def break_even_pictures(points: pd.DataFrame, break_evens: pd.DataFrame) -> list[Picture]:
    """One for each series: the speed-up against the batch size or the width, and where it passes 1."""
    kinds = ["series", "x_name"]
    found = {kind: part.iloc[0] for kind, part in break_evens.groupby(kinds)}
    return [_break_even(part, found.get(kind)) for kind, part in points.groupby(kinds, sort=False)]


def _speedups(kind: str, part: pd.DataFrame, limits: tuple[float, float]) -> Picture:
    with Drawing(height_inches=0.75 + _ROW_INCHES * len(part)) as drawing:
        axes = drawing.figure.add_subplot()
        axes.set_xlim(*limits)
        logarithmic(axes.xaxis)
        line_at_one(axes, upright=True)
        for y, row in enumerate(part.to_dict("records")):
            _dot(axes, row["speedup"], y, _interval(row["low"], row["high"]))
            said, place = f"{row['experiment']}: {_speedup_told(row)}", axes.get_yaxis_transform()
            axes.text(0.0, y - 0.32, said, transform=place, bbox={"color": PAPER, "pad": 0.8, "linewidth": 0})
        axes.set_ylim(len(part) - 0.6, -0.9)
        axes.yaxis.set_visible(False)
        axes.spines["left"].set_visible(False)
        axes.grid(axis="x")
        axes.set_xlabel("the CPU is faster  \N{LEFTWARDS ARROW}  speed-up  \N{RIGHTWARDS ARROW}  the GPU is faster")
        told = "; ".join(f"{row['experiment']} {_speedup_told(row)}" for row in part.to_dict("records"))
        name = NAMES[kind]  # type: ignore[index]
        return drawing.picture(f"speedup-{kind}", name[0].upper() + name[1:], f"Speed-up of {name}: {told}")


def _break_even(part: pd.DataFrame, found: pd.Series | None) -> Picture:
    """Of one series."""
    part = part.sort_values("x")
    series, x_name = (str(part[column].iloc[0]) for column in ("series", "x_name"))
    with Drawing(height_inches=2.7) as drawing:
        axes = drawing.figure.add_subplot()
        axes.set_ylim(*_limits(part[["speedup", "speedup_low", "speedup_high"]].to_numpy().ravel()))
        axes.set_xlim(part["x"].min() / 1.3, part["x"].max() * 1.3)
        logarithmic(axes.xaxis)
        logarithmic(axes.yaxis)
        line_at_one(axes, upright=False)
        axes.plot(part["x"], part["speedup"], color=DEVICE_COLOURS["gpu"], linewidth=1)
        for row in part.to_dict("records"):
            interval = _interval(row["speedup_low"], row["speedup_high"])
            _dot(axes, row["x"], row["speedup"], interval, upright=True)
        passes = _mark_break_even(axes, found)
        axes.set_xlabel(x_name)
        axes.set_ylabel("speed-up")
        axes.grid()
        told = "; ".join(f"{x:g}: {ratio(speedup)}" for x, speedup in zip(part["x"], part["speedup"], strict=True))
        caption = f"{series}: {passes}"
        return drawing.picture(f"break-even-{series}-{x_name}", caption, f"Speed-up by {x_name}: {told}")


def _mark_break_even(axes: Axes, found: pd.Series | None) -> str:
    """The line and what is said of it."""
    if found is None or pd.isna(found["break_even"]):
        return "no break-even within what was measured"
    axes.axvline(found["break_even"], color=INK, linestyle=":", linewidth=1.2)
    told, low, high = f"break-even at {found['break_even']:,.3g}", found["low"], found["high"]
    if pd.isna(low) and pd.isna(high):
        return f"{told} by the medians, no interval"
    leftmost, rightmost = axes.get_xlim()
    axes.axvspan(leftmost if pd.isna(low) else low, rightmost if pd.isna(high) else high, color=SOFT, alpha=0.18, lw=0)
    bounds = "below" if pd.isna(low) else f"{low:,.3g}", "above" if pd.isna(high) else f"{high:,.3g}"
    return f"{told} ({' to '.join(bounds)})"


def _dot(axes: Axes, x: float, y: float, interval: tuple[float, float] | None, *, upright: bool = False) -> None:
    """Open where there is no interval: a ratio of which it isn't known how sure it is."""
    colour = DEVICE_COLOURS["gpu"]
    if interval:
        place = ([x, x], interval) if upright else (interval, [y, y])
        axes.plot(*place, color=colour, linewidth=2.2, solid_capstyle="butt", marker="|" if not upright else "_")
    axes.plot(x, y, marker="o", markersize=6, color=colour, markerfacecolor=colour if interval else "none")


def _interval(low: float, high: float) -> tuple[float, float] | None:
    return None if pd.isna(low) or pd.isna(high) else (low, high)


def _speedup_told(row: dict[Hashable, Any]) -> str:
    interval = _interval(row["low"], row["high"])
    between = f" ({ratio(interval[0])} to {ratio(interval[1])})" if interval else " (no interval)"
    return ratio(row["speedup"]) + between


def _limits(values: Iterable[float]) -> tuple[float, float]:
    known = [value for value in values if not math.isnan(value)]
    lowest, highest = min([1 / _LEAST_SPAN, *(value / 1.2 for value in known)]), max([_LEAST_SPAN, *known]) * 1.2
    return lowest, highest


_COLOURS = ("#0068a4", "#b94c00", "#007a5e", "#a05a8c", "#6b7280", "#8a6d00")
"""each dark enough for white text, light enough for a dark page"""
_HATCHES = ("", "///", "", "\\\\\\", "", "...")
_LEAST_LABELLED_SHARE = 0.14


def step_pictures(attribution: pd.DataFrame) -> list[Picture]:
    """One for each experiment: a bar for each device, cut into the parts of its step."""
    parts = list(dict.fromkeys(attribution["part"]))
    return [_bars(str(name), part, parts) for name, part in attribution.groupby("experiment", sort=False)]


def _bars(experiment: str, attribution: pd.DataFrame, parts: list[str]) -> Picture:
    devices = list(dict.fromkeys(attribution["device"]))
    with Drawing(height_inches=0.9 + 0.45 * len(devices) + 0.18 * ((len(parts) + 1) // 2)) as drawing:
        axes = drawing.figure.add_subplot()
        for y, device in enumerate(devices):
            shares = attribution[attribution["device"] == device].set_index("part")["share"]
            _bar(axes, y, {part: float(shares.get(part, 0.0)) for part in parts})
        axes.set_yticks(range(len(devices)), [_label(device, attribution) for device in devices])
        axes.set_ylim(len(devices) - 0.5, -0.5)
        axes.set_xlim(0, 1)
        axes.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
        axes.set_xlabel("share of a step")
        axes.tick_params(axis="y", length=0)
        drawing.figure.legend(loc="outside lower center", ncols=2)
        told = listed([_part_told(row) for row in attribution.to_dict("records")])
        return drawing.picture(f"step-{experiment}", experiment, f"The parts of a step of {experiment}: {told}")


def _bar(axes: Axes, y: int, shares: dict[str, float]) -> None:
    left = 0.0
    for (part, share), colour, hatch in zip(shares.items(), cycle(_COLOURS), cycle(_HATCHES), strict=False):
        label = part if y == 0 else None  # once in the legend
        axes.barh(y, share, left=left, height=0.62, color=colour, edgecolor=PAPER, hatch=hatch, label=label)
        if share >= _LEAST_LABELLED_SHARE:
            place, box = left + share / 2, {"color": colour, "pad": 1.0, "linewidth": 0}
            axes.text(place, y, f"{share:.0%}", color="white", weight="bold", ha="center", va="center", bbox=box)
        left += share


def _label(device: str, attribution: pd.DataFrame) -> str:
    whole = attribution.loc[attribution["device"] == device, "median_seconds"].sum()
    return f"{device.upper()}\n{seconds(float(whole))}"


def _part_told(row: dict[Hashable, Any]) -> str:
    return f"{row['device']} {row['part']} {seconds(row['median_seconds'])}"


_AGAINST = {"epoch": "epoch", "training_seconds_so_far": "seconds of training"}
_MOST_MARKED_EPOCHS = 30


def learning_curves(history: pd.DataFrame) -> list[Picture]:
    """One for each experiment, with a line for each device."""
    return [_curve(str(name), part) for name, part in history.groupby("experiment", sort=False)]


def _curve(experiment: str, history: pd.DataFrame) -> Picture:
    devices = {str(device): part for device, part in history.groupby("device", sort=False)}
    with Drawing(height_inches=3.6) as drawing:
        upper, lower = drawing.figure.subplots(2, 1, sharey=True)
        for axes, (column, label) in zip((upper, lower), _AGAINST.items(), strict=True):
            for device, part in devices.items():
                _line(axes, device, part, column)
            axes.set_xlabel(label)
            axes.set_ylabel("validation loss")
            axes.grid(axis="y")
        upper.set_ylim(bottom=0)
        upper.xaxis.set_major_locator(MaxNLocator(integer=True))
        if len(devices) > 1:  # who takes ten times as long would squeeze the other's line against the edge
            logarithmic(lower.xaxis)
        upper.legend(loc="upper right")
        told = listed([_curve_told(device, part) for device, part in devices.items()])
        return drawing.picture(f"loss-{experiment}", experiment, f"Validation loss of {experiment}: {told}")


def _line(axes: Axes, device: str, part: pd.DataFrame, column: str) -> None:
    axes.plot(
        part[column],
        part["validation_loss"],
        color=DEVICE_COLOURS[device],
        linestyle=DEVICE_LINES[device],
        marker=DEVICE_MARKERS[device] if len(part) <= _MOST_MARKED_EPOCHS else None,
        markersize=3,
        label=device.upper(),
    )


def _curve_told(device: str, part: pd.DataFrame) -> str:
    first, last = part.iloc[0], part.iloc[-1]
    return (
        f"on the {device.upper()} from {first['validation_loss']:.3g} to {last['validation_loss']:.3g} "
        f"in {len(part)} epochs and {seconds(last['training_seconds_so_far'])} of training"
    )


_Counts = npt.NDArray[np.int_]
_MOST_NUMBERED, _MOST_NAMED = 12, 25
"""classes: with more, figures or names would lie upon each other"""
_STRONG_SHARE = 0.55
"""of a row: from here on, the cell is dark whatever the page's colour"""
_BLUE = to_rgb("#0063a0")
_FROM_NOTHING = LinearSegmentedColormap.from_list("from nothing", [(*_BLUE, 0.0), (*_BLUE, 1.0)])
"""a cell without images shows the page, be it light or dark"""


def confusion_pictures(confusion: pd.DataFrame) -> dict[str, list[Picture]]:
    """Of each experiment, one for each device."""
    return {
        str(experiment): [_picture(str(experiment), str(device), part) for device, part in each.groupby("device")]
        for experiment, each in confusion.groupby("experiment", sort=False)
    }


def _picture(experiment: str, device: str, confusion: pd.DataFrame) -> Picture:
    names = list(dict.fromkeys(map(str, confusion["actual"])))
    matrix = confusion["images"].to_numpy(int).reshape(len(names), len(names))
    with Drawing(height_inches=WIDTH_INCHES) as drawing:
        _matrix(drawing.figure.add_subplot(), matrix, names)
        told = f"Confusion matrix of {experiment}, {device.upper()}: {_confusion_told(matrix, names)}"
        return drawing.picture(f"confusion-{experiment}-{device}", device.upper(), told)


def _matrix(axes: Axes, matrix: _Counts, names: list[str]) -> None:
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    axes.imshow(shares, cmap=_FROM_NOTHING, vmin=0, vmax=1, interpolation="none")
    axes.set_xlabel("predicted")
    axes.set_ylabel("actual")
    for spine in axes.spines.values():
        spine.set_visible(True)
    ticks = range(len(names)) if len(names) <= _MOST_NAMED else []
    axes.set_xticks(ticks, [_short(names[tick]) for tick in ticks], rotation=90 if max(map(len, names)) > 2 else 0)
    axes.set_yticks(ticks, [_short(names[tick]) for tick in ticks])
    axes.tick_params(length=0)
    if len(names) <= _MOST_NUMBERED:
        for (row, column), count in np.ndenumerate(matrix):
            if count:
                colour = "#ffffff" if shares[row, column] >= _STRONG_SHARE else INK
                axes.text(column, row, str(count), ha="center", va="center", color=colour, fontsize=6.5)


def _confusion_told(matrix: _Counts, names: list[str]) -> str:
    right, wrong = int(np.trace(matrix)), matrix - np.diag(np.diag(matrix))
    told = f"{right:,} of {matrix.sum():,} images right"
    if wrong.any():
        row, column = np.unravel_index(wrong.argmax(), wrong.shape)
        told += f"; the commonest mistake: {names[row]} taken for {names[column]} ({wrong[row, column]:,})"
    return told


def _short(name: str) -> str:
    return name if len(name) <= 12 else f"{name[:11]}\N{HORIZONTAL ELLIPSIS}"
