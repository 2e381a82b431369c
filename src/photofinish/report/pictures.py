"""The report's figures: SVG by matplotlib, whose text is text and whose colours are the page's."""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from matplotlib import rc_context, rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator, PercentFormatter

from photofinish.comparing.scaling import BreakEven
from photofinish.report.rows import Rows, grouped
from photofinish.report.sentences import NAMES
from photofinish.wording import listed, ratio, seconds

INK, SOFT, LINE = "#1c2127", "#555d67", "#d8dde3"
DEVICE_COLOURS = {"cpu": "#0072b2", "gpu": "#c75000"}
_VARIABLES = {INK: "--ink", SOFT: "--soft", LINE: "--line"} | {
    colour: f"--{device}" for device, colour in DEVICE_COLOURS.items()
}
"""The page's CSS variable for each colour, which has another value on a dark page."""
_STYLE: Any = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # a name may have dollar signs
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": SOFT,
    "xtick.labelcolor": SOFT,
    "ytick.labelcolor": SOFT,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "legend.frameon": False,
    "lines.markersize": 4,
}
_DASHES = {"cpu": "-", "gpu": "--"}
_MARKERS = {"cpu": "o", "gpu": "s"}
_WIDTH = 4.2
"""Width of each figure, in inches."""
_MOST_MARKED_EPOCHS = 30
_MOST_NAMED = 15
_LONGEST_NAME = 44


@dataclass(frozen=True)
class Picture:
    """One figure."""

    name: str
    """Name of its file, without the extension."""
    caption: str
    description: str
    """What it shows, for those who cannot see it."""
    svg: str

    @property
    def inline(self) -> str:
        """The SVG element with the page's colours."""
        colours = "|".join(_VARIABLES)
        return re.sub(colours, lambda found: f"var({_VARIABLES[found[0]]}, {found[0]})", self.svg)

    @property
    def file(self) -> str:
        """A file of its own, on white."""
        white = self.svg.replace("<svg ", '<svg style="background:#fff" ', 1)
        return f'<?xml version="1.0" encoding="utf-8"?>\n{white}'


def _picture(figure: Figure, name: str, caption: str, description: str) -> Picture:
    """Return the figure as an SVG element; the same figure gives the same bytes."""
    rcParams["svg.hashsalt"] = name  # ids differ between the figures of a page
    text = io.StringIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the browser's font has it
        figure.savefig(text, format="svg", metadata={"Date": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg ") :].replace("<svg ", f'<svg role="img" aria-label="{escape(description)}" ', 1)
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r' id="[A-Za-z][\w.]*_\d+"', "", svg)  # nothing refers to these, and all figures have the same
    return Picture(re.sub(r"[^\w.-]", "_", name), caption, description, svg)


def _axes(height: float, count: int = 1) -> tuple[Figure, list[Axes]]:
    """Return a figure of so many inches with `count` panels below each other."""
    figure = Figure(figsize=(_WIDTH, height))
    axes = figure.subplots(count, squeeze=False)[:, 0]
    top, bottom = 0.3 / height, 0.5 / height
    figure.subplots_adjust(left=0.18, right=0.97, top=1 - top, bottom=bottom, hspace=0.45)
    return figure, list(axes)


def _logarithmic(axis: Any, low: float, high: float) -> None:
    """Give the axis round ticks, few of them."""
    is_wide = high / low > 300
    axis.set_major_locator(LogLocator(subs=(1.0,) if is_wide else (1.0, 2.0, 5.0)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))


def _legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    columns = min(4, len(labels))
    figure.legend(
        handles,
        labels,
        loc="upper left",
        ncols=columns,
        fontsize=8,
        borderaxespad=0.2,
        columnspacing=1,
        handletextpad=0.4,
    )


@rc_context(_STYLE)
def speedup_pictures(speedups: Rows) -> list[Picture]:
    """Draw one figure for each kind of speed-up, all to one scale, with a row for each experiment."""
    found = []
    low, high = _limits(speedups)
    for (kind,), rows in grouped(speedups, "of").items():
        are_named = len(rows) <= _MOST_NAMED
        if not are_named:
            rows = sorted(rows, key=lambda row: row["speedup"])
        figure, (axes,) = _axes(0.9 + 0.3 * len(rows) if are_named else 3.0)
        axes.set_xscale("log")
        axes.set_xlim(low, high)
        axes.set_ylim(len(rows) - 0.4, -0.75)
        axes.set_yticks([])
        axes.grid(axis="y", visible=False)
        _logarithmic(axes.xaxis, low, high)
        axes.axvline(1.0, color=SOFT, linewidth=1)
        axes.set_xlabel("CPU faster  ←  speed-up  →  GPU faster")
        figure.subplots_adjust(left=0.03)
        _estimates(axes, rows, range(len(rows)))
        for number, row in enumerate(rows if are_named else ()):
            name = row["experiment"][:_LONGEST_NAME]
            axes.text(0, number - 0.22, f"{name}: {_speedup(row)}", transform=axes.get_yaxis_transform())
        of: str = NAMES[kind]  # type: ignore[index]
        caption = of[0].upper() + of[1:]
        each = "; ".join(f"{row['experiment']} {_speedup(row)}" for row in rows)
        found.append(_picture(figure, f"speedup-{kind}", caption, f"Speed-up of {of}: {each}"))
    return found


def _speedup(row: dict[str, Any]) -> str:
    interval = "no interval" if row["low"] is None else f"{ratio(row['low'])} to {ratio(row['high'])}"
    return f"{ratio(row['speedup'])} ({interval})"


def _estimates(axes: Axes, rows: Rows, places: Sequence[float], *, is_upright: bool = False) -> None:
    """Draw ratios with their intervals. One without an interval is open: how sure it is isn't known."""
    colour = DEVICE_COLOURS["gpu"]
    for fill, is_sure in ((colour, True), ("none", False)):
        shown = [(row, place) for row, place in zip(rows, places, strict=True) if (row["low"] is not None) is is_sure]
        values, at = [row["speedup"] for row, _ in shown], [place for _, place in shown]
        x, y = (at, values) if is_upright else (values, at)
        axes.plot(x, y, "o", color=colour, markerfacecolor=fill)
        if is_sure and shown:
            lines = axes.vlines if is_upright else axes.hlines
            lines(at, [row["low"] for row, _ in shown], [row["high"] for row, _ in shown], color=colour, linewidth=1.5)


def _limits(rows: Rows) -> tuple[float, float]:
    """Return the ends of an axis of ratios. It reaches from 1/2 to 2 at least, so that a few percent look small."""
    known = [row[column] for row in rows for column in ("speedup", "low", "high") if row[column] is not None]
    return min([0.5, *known]) / 1.2, max([2.0, *known]) * 1.2


@rc_context(_STYLE)
def time_and_accuracy(comparison: Rows) -> Picture | None:
    """Draw what accuracy each training reached in what time."""
    trained = [row for row in comparison if row["test_accuracy"] is not None]
    if not trained:
        return None
    figure, (axes,) = _axes(2.8)
    times = [row["total_seconds"] for row in trained]
    accuracies = [row["test_accuracy"] for row in trained]
    low, high = min(times) / 1.2, max(times) * 1.2
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    _logarithmic(axes.xaxis, low, high)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set(xlabel="seconds from start to end", ylabel="test accuracy")
    for (device,), rows in grouped(trained, "device").items():
        x, y = ([row[column] for row in rows] for column in ("total_seconds", "test_accuracy"))
        colour = DEVICE_COLOURS[device]
        axes.plot(x, y, _MARKERS[device], color=colour, markerfacecolor="none", label=device.upper())
    _legend(figure, axes)
    description = (
        f"{len(trained)} trainings took {seconds(min(times))} to {seconds(max(times))} and reached "
        f"{min(accuracies):.2%} to {max(accuracies):.2%} test accuracy"
    )
    return _picture(figure, "time-and-accuracy", "Time and accuracy", description)


@rc_context(_STYLE)
def break_even_pictures(points: Rows, break_evens: Mapping[tuple[str, str], BreakEven]) -> list[Picture]:
    """Draw the speed-up against the batch size or a width for each series, and where it crosses 1."""
    found = []
    points = [row | {"low": row["speedup_low"], "high": row["speedup_high"]} for row in points]
    low, high = _limits(points)
    for (series, x_name), rows in grouped(points, "series", "x_name").items():
        figure, (axes,) = _axes(2.4)
        sizes = [row["x"] for row in rows]
        axes.set(xscale="log", yscale="log", ylim=(low, high), xlabel=x_name, ylabel="speed-up")
        axes.set_xlim(sizes[0] / 1.3, sizes[-1] * 1.3)
        _logarithmic(axes.xaxis, sizes[0], sizes[-1])
        _logarithmic(axes.yaxis, low, high)
        axes.axhline(1.0, color=SOFT, linewidth=1)
        axes.plot(sizes, [row["speedup"] for row in rows], color=DEVICE_COLOURS["gpu"], linewidth=1)
        _estimates(axes, rows, sizes, is_upright=True)
        passes = _mark_break_even(axes, break_evens[series, x_name])
        each = "; ".join(f"{row['x']:g}: {ratio(row['speedup'])}" for row in rows)
        name = f"break-even-{series}-{x_name}"
        found.append(_picture(figure, name, f"{series}: {passes}", f"Speed-up by {x_name}: {each}"))
    return found


def _mark_break_even(axes: Axes, found: BreakEven) -> str:
    """Draw the break-even size with its interval, and return it in words."""
    if found.size is None:
        return "no break-even within the sizes measured"
    low, high = found.low, found.high
    axes.axvline(found.size, color=INK, linestyle=":", linewidth=1.2)
    words = f"break-even at {found.size:,.3g}"
    if low is None and high is None:
        return f"{words}, no interval"
    left, right = axes.get_xlim()
    axes.axvspan(left if low is None else low, right if high is None else high, color=SOFT, alpha=0.18)
    ends = "below" if low is None else f"{low:,.3g}", "above" if high is None else f"{high:,.3g}"
    return f"{words} ({' to '.join(ends)})"


@rc_context(_STYLE)
def learning_curves(history: Rows) -> list[Picture]:
    """Draw the validation loss of each experiment: against epochs, and of two devices also against seconds."""
    found = []
    for (experiment,), rows in grouped(history, "experiment").items():
        devices = {device: own for (device,), own in grouped(rows, "device").items()}
        shown = {"epoch": "epoch", "training_seconds_so_far": "seconds of training"}
        if len(devices) == 1:
            del shown["training_seconds_so_far"]
        figure, panels = _axes(2.2 * len(shown), len(shown))
        for axes, (column, label) in zip(panels, shown.items(), strict=True):
            for device, own in devices.items():
                _curve(axes, device, [row[column] for row in own], [row["validation_loss"] for row in own])
            axes.set(xlabel=label, ylabel="validation loss")
            axes.set_xlim(left=0)
        _legend(figure, panels[0])
        each = [
            f"on the {device.upper()} from {own[0]['validation_loss']:.3g} to {own[-1]['validation_loss']:.3g} in "
            f"{len(own)} epochs and {seconds(own[-1]['training_seconds_so_far'])} of training"
            for device, own in devices.items()
        ]
        description = f"Validation loss of {experiment}: {listed(each)}"
        found.append(_picture(figure, f"loss-{experiment}", "How it learned", description))
    return found


def _curve(axes: Axes, device: str, values: Sequence[float], losses: Sequence[float]) -> None:
    """Draw one device's losses, without those that are no number."""
    points = [(value, loss) for value, loss in zip(values, losses, strict=True) if math.isfinite(loss)]
    x, y = zip(*points, strict=True) if points else ((), ())
    marker = _MARKERS[device] if len(points) <= _MOST_MARKED_EPOCHS else ""
    axes.plot(x, y, _DASHES[device], color=DEVICE_COLOURS[device], marker=marker, label=device.upper())
