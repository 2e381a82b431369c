"""SVG from matplotlib, with selectable text and the page's colours."""

from __future__ import annotations

import io
import re
import warnings
from dataclasses import dataclass
from html import escape
from typing import Any

from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK, SOFT, LINE, YES = "#1c2127", "#555d67", "#d8dde3", "#0b6b3a"
DEVICE_COLOURS = {"cpu": "#0072b2", "gpu": "#c75000"}
_VARIABLES = {INK: "--ink", SOFT: "--soft", LINE: "--line", YES: "--yes"} | {
    colour: f"--{device}" for device, colour in DEVICE_COLOURS.items()
}
"""CSS variable of each colour, which changes on a dark page."""
STYLE: Any = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # a name may contain dollar signs
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
SMALL_STYLE: Any = STYLE | {
    "legend.fontsize": 8,
    "legend.borderaxespad": 0.2,
    "legend.handlelength": 1,
}
LINES = {"cpu": "-", "gpu": "--"}
MARKERS = {"cpu": "o", "gpu": "s"}
WIDTH, SMALL = 4.2, 2.5
"""Widths of figures, in inches."""


@dataclass(frozen=True)
class Picture:
    name: str
    """Name of the file, without the extension."""
    caption: str
    description: str
    """Description for screen readers."""
    svg: str
    note: str = ""
    """Sentence after the caption."""

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


def as_picture(
    figure: Figure, name: str, caption: str, description: str, note: str = ""
) -> Picture:
    """Return the figure as an SVG element. Equal figures give equal bytes."""
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
    return Picture(re.sub(r"[^\w.-]", "_", name), caption, description, svg, note)


def panel(width: float, height: float) -> tuple[Figure, Axes]:
    """Return a figure of this size in inches, whose labels and legend have room."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()
