"""Scales, axes and shapes as SVG whose text stays text; a picture takes milliseconds."""

from __future__ import annotations

import html
import math
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

INK, SOFT, PAPER = "#1c2127", "#5b636d", "#fffffe"
DEVICE_COLOURS = {"cpu": "#0072b2", "gpu": "#d55e00"}
"""of Okabe and Ito's palette, which is told apart with every kind of colour vision"""
_CSS_NAMES = {INK: "ink", SOFT: "soft", PAPER: "paper", **{colour: name for name, colour in DEVICE_COLOURS.items()}}
WIDTH = 266.0
"""of each picture, in points: as wide as a phone, so that its text is as large there as the page's"""
LEFT, RIGHT = 40.0, WIDTH - 8
"""of what is drawn beside a y axis"""
FLOOR, BELOW = 180.0, 26.0
"""where an x axis lies that has no rows above it; what it takes with its label"""
FONT = 8.0
CHARACTER = 0.56 * FONT
"""how wide one is, about; Chinese, Japanese and Korean ones are twice as wide"""
_MOST_TICKS = 7
_NOT_SHOWN = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
"""what XML doesn't take, and what would turn the text around it"""

Point = tuple[float, float]


def plain(text: str) -> str:
    """The text with a mark in place of each character that no picture can show."""
    return _NOT_SHOWN.sub("\N{REPLACEMENT CHARACTER}", text)


def text_width(text: str) -> float:
    """How wide it is drawn, about."""
    return CHARACTER * (len(text) + sum(unicodedata.east_asian_width(each) in "WF" for each in text))


@dataclass(frozen=True)
class Scale:
    """From the values between `low` and `high` to places on the paper between `start` and `end`."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        """Its place."""
        if self.logarithmic:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    @property
    def ticks(self) -> list[float]:
        """Round values: of a logarithmic scale 1, 2 and 5 of each decade, or its powers where there are many; of one
        too short for two of those, the values of another scale."""
        if self.logarithmic:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            digits = (1, 2, 5) if self.high / self.low < 200 else (1,)
            within = [
                tick for power in powers for digit in digits if self.low <= (tick := digit * 10.0**power) <= self.high
            ]
            if len(within) > 1:
                return within[:: -(-len(within) // _MOST_TICKS)]
        least_step = (self.high - self.low) / _MOST_TICKS
        power = 10.0 ** math.floor(math.log10(least_step))
        step = next(digit * power for digit in (1, 2, 5, 10) if digit * power >= least_step)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [round(number * step, 12) for number in range(first, last + 1)]


@dataclass(frozen=True)
class Picture:
    """One drawing, with what is said of it to those who see it and to those who don't."""

    name: str
    """of its file"""
    caption: str
    told: str
    """what it shows, in words, for those who can't see it"""
    svg: str

    @property
    def inline(self) -> str:
        """As a part of a page, with the page's colours."""
        text = self.svg
        for colour, name in _CSS_NAMES.items():
            text = text.replace(f'"{colour}"', f'"var(--{name}, {colour})"')
        return text.replace("<svg ", f'<svg role="img" aria-label="{html.escape(plain(self.told))}" ', 1)

    @property
    def file(self) -> str:
        """As a file of its own, on white wherever it is shown."""
        return self.svg.replace("<svg ", '<svg style="background: #fff" ', 1)


class Drawing:
    """A picture in the making; y grows downwards."""

    def __init__(self, height: float) -> None:
        self._height = height
        self._shapes: list[str] = []

    def picture(self, name: str, caption: str, told: str) -> Picture:
        """All that was drawn, under a name that addresses and file systems take."""
        size = f'viewBox="0 0 {WIDTH:g} {self._height:g}" width="{WIDTH:g}pt" height="{self._height:g}pt"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="{FONT:g}">'
        svg = "\n".join([head, *self._shapes, "</svg>", ""])
        return Picture(re.sub(r"[^\w.-]", "_", name), caption, told, svg)

    def shape(self, tag: str, content: str = "", **attributes: str | float) -> None:
        """An element of this name; `fill_opacity` is its attribute fill-opacity."""
        written = "".join(
            f' {name.replace("_", "-")}="{f"{value:.5g}" if isinstance(value, float) else value}"'
            for name, value in attributes.items()
        )
        self._shapes.append(f"<{tag}{written}>{content}</{tag}>" if content else f"<{tag}{written}/>")

    def line(self, points: Iterable[Point], colour: str = SOFT, **attributes: str | float) -> None:
        """Through all points."""
        path = " ".join(f"{x:.5g},{y:.5g}" for x, y in points)
        self.shape("polyline", "", points=path, fill="none", stroke=colour, **attributes)

    def text(
        self, place: Point, text: str, anchor: str = "middle", colour: str = INK, **attributes: str | float
    ) -> None:
        """In the middle of its place's height."""
        x, y = place
        content = html.escape(plain(text), quote=False)
        self.shape("text", content, x=x, y=y + 0.35 * FONT, text_anchor=anchor, fill=colour, **attributes)

    def upright(self, place: Point, text: str, anchor: str = "middle") -> None:
        """The same, read from below."""
        x, y = place
        self.text((0.0, 0.0), text, anchor, transform=f"translate({x:.5g} {y:.5g}) rotate(-90)")

    def dot(
        self,
        place: Point,
        colour: str,
        *,
        filled: bool = True,
        square: bool = False,
        radius: float = 3.0,
        title: str = "",
    ) -> None:
        """Round or square; the title is shown to who points at it."""
        x, y = place
        content = _title(title)
        look = {"fill": colour if filled else "none", "stroke": colour}
        if square:
            self.shape("rect", content, x=x - radius, y=y - radius, width=2 * radius, height=2 * radius, **look)
        else:
            self.shape("circle", content, cx=x, cy=y, r=radius, **look)

    def outline(self, place: Point, path: str, colour: str, title: str) -> None:
        """A hollow mark around the place, drawn from its tip on."""
        x, y = place
        self.shape("path", _title(title), d=f"M{x:.5g} {y - 4:.5g}{path}", fill="none", stroke=colour)

    def x_axis(self, x: Scale, top: float, bottom: float, label: str) -> None:
        """Below, with lines across the picture at its ticks."""
        for tick in x.ticks:
            self.line([(x(tick), top), (x(tick), bottom)], stroke_opacity=0.25)
            self.text((x(tick), bottom + 8), _written(tick))
        self.line([(x.start, bottom), (x.end, bottom)])
        self.text(((x.start + x.end) / 2, bottom + 19), label)

    def y_axis(self, y: Scale, label: str) -> None:
        """On the left, likewise."""
        for tick in y.ticks:
            self.line([(LEFT, y(tick)), (RIGHT, y(tick))], stroke_opacity=0.25)
            self.text((LEFT - 4, y(tick)), _written(tick), "end")
        self.line([(LEFT, y.start), (LEFT, y.end)])
        self.upright((6.0, (y.start + y.end) / 2), label)


def _title(text: str) -> str:
    """Shown to who points at a mark."""
    return f"<title>{html.escape(plain(text), quote=False)}</title>" if text else ""


def _written(tick: float) -> str:
    return f"{tick:g}" if abs(tick) < 1e4 else f"{tick:,.0f}" if abs(tick) < 1e7 else f"{tick:.0e}"
