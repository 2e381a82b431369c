"""The report's pictures: speed-ups, break-evens, the parts of a step, learning curves, confusion matrices.

Drawn by matplotlib, as SVG with its text left as text, its colours left to the page.
"""

from __future__ import annotations

import html
import io
import re
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import XAxis, YAxis
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from photofinish.comparing.speedups import NAMES
from photofinish.wording import listed, ratio, seconds

INK, SOFT, PAPER = "#1c2127", "#5b636d", "#fffffe"
DEVICE_COLOURS = {"cpu": "#0072b2", "gpu": "#d55e00"}
"""of Okabe and Ito's palette, which is told apart with every kind of colour vision"""
DEVICE_MARKERS, DEVICE_LINES = {"cpu": "o", "gpu": "s"}, {"cpu": "-", "gpu": "--"}
_WIDTH_INCHES = 3.7
"""of each picture: as wide as a phone, so that its text is as large there as the page's"""
_ROW_INCHES = 0.36
_LEAST_SPAN = 2.0
"""the axis reaches as far as this on each side of 1, so that a difference of a few percent looks small"""
_PART_COLOURS = ("#0068a4", "#b94c00", "#007a5e", "#a05a8c", "#6b7280", "#8a6d00")
"""each dark enough for white text, light enough for a dark page"""
_HATCHES = ("", "///", "", "\\\\\\", "", "...")
_LEAST_LABELLED_SHARE = 0.14
_MOST_MARKED_EPOCHS = 30
_MOST_NUMBERED, _MOST_NAMED = 12, 25
"""classes: with more, figures or names would lie upon each other"""
_STRONG_SHARE = 0.55
"""of a row: from here on, the cell is dark whatever the page's colour"""
_BLUE = to_rgb("#0063a0")
_FROM_NOTHING = LinearSegmentedColormap.from_list("from nothing", [(*_BLUE, 0.0), (*_BLUE, 1.0)])
"""a cell without images shows the page, be it light or dark"""
_NAMES = {INK: "ink", SOFT: "soft", PAPER: "paper", **{colour: name for name, colour in DEVICE_COLOURS.items()}}
_STYLE: Any = {
    **dict.fromkeys(
        ["axes.labelcolor", "legend.labelcolor", "text.color", "xtick.labelcolor", "ytick.labelcolor"], INK
    ),
    **dict.fromkeys(["axes.edgecolor", "grid.color", "xtick.color", "ytick.color"], SOFT),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 8,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "photofinish",
    "text.parse_math": False,
}


@dataclass(frozen=True)
class Picture:
    """One drawing, with what is said of it to those who see it and to those who don't."""

    name: str
    """of its file, and of what belongs to it on the page"""
    caption: str
    told: str
    """what it shows, in words, for those who can't see it"""
    svg: str

    @property
    def inline(self) -> str:
        """As a part of a page: with the page's colours, and ids that no other picture has."""
        text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{self.name}-", self.svg)
        for colour, name in _NAMES.items():
            text = re.sub(rf"(fill|stroke): {colour}", rf"\1: var(--{name}, {colour})", text)
        return text.replace("<svg ", f'<svg role="img" aria-label="{html.escape(self.told, quote=True)}" ', 1)

    @property
    def file(self) -> str:
        """As a file of its own, on white wherever it is shown."""
        return self.svg.replace("<svg ", '<svg style="background: #fff" ', 1)


@mpl.rc_context(_STYLE)
def speedup_pictures(speedups: pd.DataFrame) -> list[Picture]:
    """One for each kind, drawn to the same scale: a row for each experiment."""
    limits, pictures = _limits(speedups[["speedup", "low", "high"]]), []
    for kind, part in speedups.groupby("of", sort=False):
        figure, axes = _figure(0.75 + _ROW_INCHES * len(part))
        axes.set_xlim(*limits)
        _logarithmic(axes.xaxis)
        axes.axvline(1.0, color=SOFT, linewidth=1, zorder=1)
        told = []
        for y, row in enumerate(part.to_dict("records")):
            interval = _interval(row["low"], row["high"])
            between = f"{ratio(interval[0])} to {ratio(interval[1])}" if interval else "no interval"
            found = f"{ratio(row['speedup'])} ({between})"
            told.append(f"{row['experiment']} {found}")
            _dot(axes, row["speedup"], y, interval)
            said, place = f"{row['experiment']}: {found}", axes.get_yaxis_transform()
            axes.text(0.0, y - 0.32, said, transform=place, bbox={"color": PAPER, "pad": 0.8, "linewidth": 0})
        axes.set_ylim(len(part) - 0.6, -0.9)
        axes.yaxis.set_visible(False)
        axes.spines["left"].set_visible(False)
        axes.grid(axis="x")
        axes.set_xlabel("the CPU is faster  \N{LEFTWARDS ARROW}  speed-up  \N{RIGHTWARDS ARROW}  the GPU is faster")
        name = NAMES[kind]  # type: ignore[index]
        caption = name[0].upper() + name[1:]
        pictures.append(_picture(figure, f"speedup-{kind}", caption, f"Speed-up of {name}: {'; '.join(told)}"))
    return pictures


@mpl.rc_context(_STYLE)
def break_even_pictures(points: pd.DataFrame, break_evens: pd.DataFrame) -> list[Picture]:
    """One for each series: the speed-up against the batch size or the width, and where it passes 1."""
    kinds, pictures = ["series", "x_name"], []
    found = {kind: part.iloc[0] for kind, part in break_evens.groupby(kinds)}
    for kind, part in points.groupby(kinds, sort=False):
        series, x_name = map(str, kind)
        part = part.sort_values("x")
        figure, axes = _figure(2.7)
        axes.set_ylim(*_limits(part[["speedup", "speedup_low", "speedup_high"]]))
        axes.set_xlim(part["x"].min() / 1.3, part["x"].max() * 1.3)
        _logarithmic(axes.xaxis)
        _logarithmic(axes.yaxis)
        axes.axhline(1.0, color=SOFT, linewidth=1, zorder=1)
        axes.plot(part["x"], part["speedup"], color=DEVICE_COLOURS["gpu"], linewidth=1)
        for row in part.to_dict("records"):
            _dot(axes, row["x"], row["speedup"], _interval(row["speedup_low"], row["speedup_high"]), upright=True)
        passes = _mark_break_even(axes, found.get(kind))
        axes.set_xlabel(x_name)
        axes.set_ylabel("speed-up")
        axes.grid()
        told = "; ".join(f"{x:g}: {ratio(speedup)}" for x, speedup in zip(part["x"], part["speedup"], strict=True))
        told = f"Speed-up by {x_name}: {told}"
        pictures.append(_picture(figure, f"break-even-{series}-{x_name}", f"{series}: {passes}", told))
    return pictures


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


@mpl.rc_context(_STYLE)
def step_pictures(attribution: pd.DataFrame) -> list[Picture]:
    """One for each experiment: a bar for each device, cut into the parts of its step."""
    parts, pictures = list(dict.fromkeys(attribution["part"])), []
    for experiment, rows in attribution.groupby("experiment", sort=False):
        devices = {str(device): own.set_index("part") for device, own in rows.groupby("device", sort=False)}
        figure, axes = _figure(0.9 + 0.45 * len(devices) + 0.18 * ((len(parts) + 1) // 2))
        for y, own in enumerate(devices.values()):
            left = 0.0
            for part, colour, hatch in zip(parts, cycle(_PART_COLOURS), cycle(_HATCHES), strict=False):
                share = float(own["share"].get(part, 0.0))
                label = part if y == 0 else None  # once in the legend
                axes.barh(y, share, left=left, height=0.62, color=colour, edgecolor=PAPER, hatch=hatch, label=label)
                if share >= _LEAST_LABELLED_SHARE:
                    place, box = left + share / 2, {"color": colour, "pad": 1.0, "linewidth": 0}
                    axes.text(
                        place, y, f"{share:.0%}", color="white", weight="bold", ha="center", va="center", bbox=box
                    )
                left += share
        labels = [f"{name.upper()}\n{seconds(float(own['median_seconds'].sum()))}" for name, own in devices.items()]
        axes.set_yticks(range(len(devices)), labels)
        axes.set_ylim(len(devices) - 0.5, -0.5)
        axes.set_xlim(0, 1)
        axes.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
        axes.set_xlabel("share of a step")
        axes.tick_params(axis="y", length=0)
        figure.legend(loc="outside lower center", ncols=2)
        told = [f"{row['device']} {row['part']} {seconds(row['median_seconds'])}" for row in rows.to_dict("records")]
        said = f"The parts of a step of {experiment}: {listed(told)}"
        pictures.append(_picture(figure, f"step-{experiment}", str(experiment), said))
    return pictures


@mpl.rc_context(_STYLE)
def learning_curves(history: pd.DataFrame) -> list[Picture]:
    """One for each experiment, with a line for each device."""
    pictures = []
    for experiment, rows in history.groupby("experiment", sort=False):
        devices = {str(device): part for device, part in rows.groupby("device", sort=False)}
        figure = Figure(figsize=(_WIDTH_INCHES, 3.6), layout="constrained")
        upper, lower = figure.subplots(2, 1, sharey=True)
        shown = (upper, "epoch", "epoch"), (lower, "training_seconds_so_far", "seconds of training")
        for axes, column, label in shown:
            for device, part in devices.items():
                axes.plot(
                    part[column],
                    part["validation_loss"],
                    color=DEVICE_COLOURS[device],
                    linestyle=DEVICE_LINES[device],
                    marker=DEVICE_MARKERS[device] if len(part) <= _MOST_MARKED_EPOCHS else None,
                    markersize=3,
                    label=device.upper(),
                )
            axes.set_xlabel(label)
            axes.set_ylabel("validation loss")
            axes.grid(axis="y")
        upper.set_ylim(bottom=0)
        upper.xaxis.set_major_locator(MaxNLocator(integer=True))
        if len(devices) > 1:  # who takes ten times as long would squeeze the other's line against the edge
            _logarithmic(lower.xaxis)
        upper.legend(loc="upper right")
        told = [
            f"on the {device.upper()} from {part['validation_loss'].iloc[0]:.3g} to "
            f"{part['validation_loss'].iloc[-1]:.3g} in {len(part)} epochs and "
            f"{seconds(part['training_seconds_so_far'].iloc[-1])} of training"
            for device, part in devices.items()
        ]
        said = f"Validation loss of {experiment}: {listed(told)}"
        pictures.append(_picture(figure, f"loss-{experiment}", str(experiment), said))
    return pictures


@mpl.rc_context(_STYLE)
def confusion_pictures(confusion: pd.DataFrame) -> dict[str, list[Picture]]:
    """Of each experiment, one for each device."""
    pictures: dict[str, list[Picture]] = {str(experiment): [] for experiment in confusion["experiment"].unique()}
    for kind, rows in confusion.groupby(["experiment", "device"]):
        experiment, device = map(str, kind)
        names = list(dict.fromkeys(map(str, rows["actual"])))
        matrix = rows["images"].to_numpy(int).reshape(len(names), len(names))
        figure, axes = _figure(_WIDTH_INCHES)
        _draw_matrix(axes, matrix, names)
        right, wrong = int(np.trace(matrix)), matrix - np.diag(np.diag(matrix))
        told = f"{right:,} of {matrix.sum():,} images right"
        if wrong.any():
            row, column = np.unravel_index(wrong.argmax(), wrong.shape)
            told += f"; the commonest mistake: {names[row]} taken for {names[column]} ({wrong[row, column]:,})"
        told = f"Confusion matrix of {experiment}, {device.upper()}: {told}"
        pictures[experiment].append(_picture(figure, f"confusion-{experiment}-{device}", device.upper(), told))
    return pictures


def _draw_matrix(axes: Axes, matrix: npt.NDArray[np.int_], names: list[str]) -> None:
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    axes.imshow(shares, cmap=_FROM_NOTHING, vmin=0, vmax=1, interpolation="none")
    axes.set_xlabel("predicted")
    axes.set_ylabel("actual")
    for spine in axes.spines.values():
        spine.set_visible(True)
    shown = names if len(names) <= _MOST_NAMED else []
    labels = [name if len(name) <= 12 else f"{name[:11]}\N{HORIZONTAL ELLIPSIS}" for name in shown]
    axes.set_xticks(range(len(labels)), labels, rotation=90 if max(map(len, names)) > 2 else 0)
    axes.set_yticks(range(len(labels)), labels)
    axes.tick_params(length=0)
    if len(names) <= _MOST_NUMBERED:
        for (row, column), count in np.ndenumerate(matrix):
            if count:
                colour = "#ffffff" if shares[row, column] >= _STRONG_SHARE else INK
                axes.text(column, row, str(count), ha="center", va="center", color=colour, fontsize=6.5)


def _figure(height_inches: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(_WIDTH_INCHES, height_inches), layout="constrained")
    return figure, figure.add_subplot()


def _picture(figure: Figure, name: str, caption: str, told: str) -> Picture:
    text = io.StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    name = re.sub(r"[^\w.-]", "_", name)  # what an id, an address and a file system take
    return Picture(name, caption, told, text.getvalue()[text.getvalue().index("<svg") :])


def _logarithmic(axis: XAxis | YAxis) -> None:
    """With ticks at 1, 2 and 5 of each decade, or at its powers alone where there are many; written out in full."""
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    low, high = axis.get_view_interval()
    subs = (1.0, 2.0, 5.0) if high / low < 200 else (1.0,)
    axis.set_major_locator(LogLocator(subs=subs, numticks=12))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: f"{value:g}" if value < 1e4 else f"{value:,.0f}")


def _dot(axes: Axes, x: float, y: float, interval: tuple[float, float] | None, *, upright: bool = False) -> None:
    """Open where there is no interval: a ratio of which it isn't known how sure it is."""
    colour = DEVICE_COLOURS["gpu"]
    if interval:
        place = ([x, x], interval) if upright else (interval, [y, y])
        axes.plot(*place, color=colour, linewidth=2.2, solid_capstyle="butt", marker="_" if upright else "|")
    axes.plot(x, y, marker="o", markersize=6, color=colour, markerfacecolor=colour if interval else "none")


def _interval(low: float, high: float) -> tuple[float, float] | None:
    return None if pd.isna(low) or pd.isna(high) else (low, high)


def _limits(ratios: pd.DataFrame) -> tuple[float, float]:
    known = [value for value in ratios.to_numpy().ravel() if not pd.isna(value)]
    return min([1 / _LEAST_SPAN, *(value / 1.2 for value in known)]), max([_LEAST_SPAN, *known]) * 1.2
