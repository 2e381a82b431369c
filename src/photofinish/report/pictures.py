"""The report's figures: SVG by matplotlib, with text as text and the page's colours."""

from __future__ import annotations

import io
import math
import re
import warnings
from dataclasses import dataclass
from html import escape
from typing import Any

from matplotlib import rc_context, rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from photofinish.report.rows import Rows, grouped
from photofinish.report.sentences import NAMES
from photofinish.wording import listed, ratio, seconds

INK, SOFT, LINE = "#1c2127", "#555d67", "#d8dde3"
DEVICE_COLOURS = {"cpu": "#0072b2", "gpu": "#c75000"}
_VARIABLES = {INK: "--ink", SOFT: "--soft", LINE: "--line"} | {
    colour: f"--{device}" for device, colour in DEVICE_COLOURS.items()
}
"""The page's CSS variable for each colour, which differs on a dark page."""
_STYLE: Any = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # a name may have dollar signs
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": SOFT,
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
_LINES = {"cpu": "-", "gpu": "--"}
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
    """Text for those who cannot see it."""
    svg: str

    @property
    def inline(self) -> str:
        """SVG element with the page's colours."""
        colours = "|".join(_VARIABLES)
        return re.sub(colours, lambda match: f"var({_VARIABLES[match[0]]}, {match[0]})", self.svg)

    @property
    def file(self) -> str:
        """SVG file, on white."""
        white = self.svg.replace("<svg ", '<svg style="background:#fff" ', 1)
        return f'<?xml version="1.0" encoding="utf-8"?>\n{white}'


def _picture(figure: Figure, name: str, caption: str, description: str) -> Picture:
    """Return the figure as an SVG element; equal figures give equal bytes."""
    rcParams["svg.hashsalt"] = name  # ids differ between the figures of a page
    text = io.StringIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the browser's font has it
        figure.savefig(text, format="svg", metadata={"Date": None})
    svg = text.getvalue()
    label = f'<svg role="img" aria-label="{escape(description)}" '
    svg = svg[svg.index("<svg ") :].replace("<svg ", label, 1)
    extras = r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->"
    svg = re.sub(extras, "", svg, flags=re.DOTALL)
    svg = re.sub(r' id="[A-Za-z][\w.]*_\d+"', "", svg)  # unused, and equal in all figures
    return Picture(re.sub(r"[^\w.-]", "_", name), caption, description, svg)


def _axes(height: float, count: int = 1) -> tuple[Figure, list[Axes]]:
    """Return a figure of this height in inches, with `count` panels below each other."""
    figure = Figure(figsize=(_WIDTH, height))
    axes = figure.subplots(count, squeeze=False)[:, 0]
    top, bottom = 1 - 0.3 / height, 0.5 / height
    figure.subplots_adjust(left=0.18, right=0.97, top=top, bottom=bottom, hspace=0.45)
    return figure, list(axes)


@rc_context(_STYLE)
def speedup_pictures(speedups: Rows) -> list[Picture]:
    """Draw a figure for each kind of speed-up, all to one scale, with a row for each experiment."""
    pictures = []
    ends = [row[end] for row in speedups for end in ("speedup", "low", "high") if row[end]]
    low, high = min([0.5, *ends]) / 1.2, max([2.0, *ends]) * 1.2
    for kind, rows in grouped(speedups, "of").items():
        has_names = len(rows) <= _MOST_NAMED
        if not has_names:
            rows = sorted(rows, key=lambda row: row["speedup"])
        figure, (axes,) = _axes(0.9 + 0.3 * len(rows) if has_names else 3.0)
        figure.subplots_adjust(left=0.03)
        axes.set_xscale("log")
        axes.set_xlim(low, high)
        is_wide = high / low > 300
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0,) if is_wide else (1.0, 2.0, 5.0)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        axes.set_ylim(len(rows) - 0.4, -0.75)
        axes.set_yticks([])
        axes.grid(axis="y", visible=False)
        axes.axvline(1.0, color=SOFT, linewidth=1)
        axes.set_xlabel("CPU faster  ←  speed-up  →  GPU faster")
        for y, row in enumerate(rows):
            _draw_speedup(axes, row, y)
            if has_names:
                text = f"{row['experiment'][:_LONGEST_NAME]}: {_speedup(row)}"
                axes.text(0, y - 0.22, text, transform=axes.get_yaxis_transform())
        noun: str = NAMES[kind]  # type: ignore[index]
        description = "; ".join(f"{row['experiment']} {_speedup(row)}" for row in rows)
        caption = noun[0].upper() + noun[1:]
        name = f"speedup-{kind}"
        pictures.append(_picture(figure, name, caption, f"Speed-up of {noun}: {description}"))
    return pictures


def _draw_speedup(axes: Axes, row: dict[str, Any], y: int) -> None:
    """Draw a ratio with its interval, or an open point if it has none."""
    colour, has_interval = DEVICE_COLOURS["gpu"], row["low"] is not None
    axes.plot(
        row["speedup"], y, "o", color=colour, markerfacecolor=colour if has_interval else "none"
    )
    if has_interval:
        axes.hlines(y, row["low"], row["high"], color=colour, linewidth=1.5)


def _speedup(row: dict[str, Any]) -> str:
    if row["low"] is None:
        return f"{ratio(row['speedup'])} (no interval)"
    return f"{ratio(row['speedup'])} ({ratio(row['low'])} to {ratio(row['high'])})"


@rc_context(_STYLE)
def learning_curves(history: Rows) -> Picture:
    """Draw an experiment's validation loss by epoch, and for two devices by seconds as well."""
    by_device = grouped(history, "device")
    columns = {"epoch": "epoch"}
    if len(by_device) > 1:
        columns["training_seconds_so_far"] = "seconds of training"
    figure, panels = _axes(2.2 * len(columns), len(columns))
    for axes, (column, label) in zip(panels, columns.items(), strict=True):
        for device, rows in by_device.items():
            shown = [row for row in rows if math.isfinite(row["validation_loss"])]
            axes.plot(
                [row[column] for row in shown],
                [row["validation_loss"] for row in shown],
                _LINES[device],
                color=DEVICE_COLOURS[device],
                marker=_MARKERS[device] if len(shown) <= _MOST_MARKED_EPOCHS else "",
                label=device.upper(),
            )
        axes.set(xlabel=label, ylabel="validation loss")
        axes.set_xlim(left=0)
    lines, labels = panels[0].get_legend_handles_labels()
    figure.legend(lines, labels, loc="upper left", ncols=2, fontsize=8, borderaxespad=0.2)
    descriptions = []
    for device, rows in by_device.items():
        first, last = rows[0]["validation_loss"], rows[-1]["validation_loss"]
        descriptions.append(
            f"on the {device.upper()} from {first:.3g} to {last:.3g} in {len(rows)} epochs "
            f"and {seconds(rows[-1]['training_seconds_so_far'])} of training"
        )
    experiment = history[0]["experiment"]
    description = f"Validation loss of {experiment}: {listed(descriptions)}"
    return _picture(figure, f"loss-{experiment}", "How it learned", description)
