"""How every picture is drawn: by matplotlib, as SVG with its text left as text, its colours left to the page."""

from __future__ import annotations

import html
import io
import re
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import XAxis, YAxis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

INK, SOFT, PAPER = "#1c2127", "#5b636d", "#fffffe"
DEVICE_COLOURS = {"cpu": "#0072b2", "gpu": "#d55e00"}
"""of Okabe and Ito's palette, which is told apart with every kind of colour vision"""
DEVICE_MARKERS, DEVICE_LINES = {"cpu": "o", "gpu": "s"}, {"cpu": "-", "gpu": "--"}
WIDTH_INCHES = 3.7
"""of each picture: as wide as a phone, so that its text is as large there as the page's"""
_NAMES = {INK: "ink", SOFT: "soft", PAPER: "paper", **{colour: name for name, colour in DEVICE_COLOURS.items()}}
_STYLE: Any = {
    "axes.edgecolor": SOFT,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 8,
    "grid.color": SOFT,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "svg.fonttype": "none",
    "svg.hashsalt": "photofinish",
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": SOFT,
    "xtick.labelcolor": INK,
    "ytick.color": SOFT,
    "ytick.labelcolor": INK,
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


class Drawing:
    """A figure to draw on: `with Drawing(height_inches=2.5) as drawing: drawing.figure.add_subplot()`."""

    def __init__(self, height_inches: float) -> None:
        self._style = mpl.rc_context(_STYLE)
        self._height_inches = height_inches

    def __enter__(self) -> Drawing:
        self._style.__enter__()
        self.figure = Figure(figsize=(WIDTH_INCHES, self._height_inches), layout="constrained")
        return self

    def __exit__(self, *error: Any) -> None:
        self._style.__exit__(*error)

    def picture(self, name: str, caption: str, told: str) -> Picture:
        text = io.StringIO()
        self.figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
        name = re.sub(r"[^\w.-]", "_", name)  # what an id, an address and a file system take
        return Picture(name, caption, told, text.getvalue()[text.getvalue().index("<svg") :])


def logarithmic(axis: XAxis | YAxis) -> None:
    """With ticks at 1, 2 and 5 of each decade, or at its powers alone where there are many; written out in full."""
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    low, high = axis.get_view_interval()
    subs = (1.0, 2.0, 5.0) if high / low < 200 else (1.0,)
    axis.set_major_locator(LogLocator(subs=subs, numticks=12))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}" if value < 1e4 else f"{value:,.0f}"))


def line_at_one(axes: Axes, *, upright: bool) -> None:
    (axes.axvline if upright else axes.axhline)(1.0, color=SOFT, linewidth=1, zorder=1)
