"""Speed-ups with their intervals: of each experiment, and against what decides whether a GPU pays."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from photofinish.comparison.speedups import NAMES
from photofinish.report.drawing import DEVICE_COLOURS, INK, PAPER, SOFT, Drawing, Picture, line_at_one, logarithmic
from photofinish.wording import ratio

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
            said, place = f"{row['experiment']}: {_told(row)}", axes.get_yaxis_transform()
            axes.text(0.0, y - 0.32, said, transform=place, bbox={"color": PAPER, "pad": 0.8, "linewidth": 0})
        axes.set_ylim(len(part) - 0.6, -0.9)
        axes.yaxis.set_visible(False)
        axes.spines["left"].set_visible(False)
        axes.grid(axis="x")
        axes.set_xlabel("the CPU is faster  \N{LEFTWARDS ARROW}  speed-up  \N{RIGHTWARDS ARROW}  the GPU is faster")
        told = "; ".join(f"{row['experiment']} {_told(row)}" for row in part.to_dict("records"))
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


def _told(row: dict[Hashable, Any]) -> str:
    interval = _interval(row["low"], row["high"])
    between = f" ({ratio(interval[0])} to {ratio(interval[1])})" if interval else " (no interval)"
    return ratio(row["speedup"]) + between


def _limits(values: Iterable[float]) -> tuple[float, float]:
    known = [value for value in values if not math.isnan(value)]
    lowest, highest = min([1 / _LEAST_SPAN, *(value / 1.2 for value in known)]), max([_LEAST_SPAN, *known]) * 1.2
    return lowest, highest
