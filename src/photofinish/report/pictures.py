"""The report's pictures: speed-ups, break-evens, the parts of a step, learning curves, confusion matrices.

Each is an SVG with its colours left to the page.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from photofinish.comparing.scaling import BreakEven
from photofinish.comparing.speedups import NAMES
from photofinish.report.drawing import (
    BELOW,
    CHARACTER,
    FLOOR,
    INK,
    LEFT,
    PAPER,
    RIGHT,
    SOFT,
    Drawing,
    Scale,
    plain,
    text_width,
)
from photofinish.report.rows import Rows, grouped
from photofinish.wording import listed, ratio, seconds

DEVICE_COLOURS = {"cpu": "#0072b2", "gpu": "#d55e00"}
"""of Okabe and Ito's palette, which is told apart with every kind of colour vision"""
_DASHES = {"cpu": "none", "gpu": "4 2"}
_ROW = 26.0
_LEAST_SPAN = 2.0
"""the axis reaches as far as this on each side of 1, so that a difference of a few percent looks small"""
_LONGEST_ROW = 58
"""of characters that fit as they are, as a rule"""
_MOST_MARKED_EPOCHS = 30
_MOST_NUMBERED, _MOST_NAMED, _LONGEST_NAME = 12, 25, 12 * CHARACTER
"""classes: with more, figures or names would lie upon each other"""
_STRONG_SHARE = 0.55
"""of a row: from here on, the cell is dark whatever the page's colour"""
_BLUE = "#0063a0"
_SHADES = 20
_CSS_NAMES = {INK: "ink", SOFT: "soft", PAPER: "paper", **{colour: name for name, colour in DEVICE_COLOURS.items()}}
_IN_BETWEEN = "the CPU is faster  \N{LEFTWARDS ARROW}  speed-up  \N{RIGHTWARDS ARROW}  the GPU is faster"


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


def as_picture(drawing: Drawing, name: str, caption: str, told: str) -> Picture:
    """What was drawn, under a name that addresses and file systems take."""
    return Picture(re.sub(r"[^\w.-]", "_", name), caption, told, drawing.svg)


def speedup_pictures(speedups: Rows) -> list[Picture]:
    """One for each kind, drawn to the same scale: a row for each experiment."""
    x, pictures = Scale(*_limits(speedups), 8.0, RIGHT, logarithmic=True), []
    for (kind,), part in grouped(speedups, "of").items():
        bottom = 6 + _ROW * len(part)
        drawing, told = Drawing(bottom + 26), []
        drawing.x_axis(x, 4.0, bottom, _IN_BETWEEN)
        drawing.line([(x(1.0), 4.0), (x(1.0), bottom)])
        for number, row in enumerate(part):
            interval = _interval(row)
            ends = " to ".join(map(ratio, interval)) if interval else "no interval"
            found = f"{ratio(row['speedup'])} ({ends})"
            told.append(f"{row['experiment']} {found}")
            y = 20 + _ROW * number
            _estimate(drawing, x, row, y)
            label = f"{row['experiment']}: {found}"
            look: dict[str, Any] = {"stroke": PAPER, "stroke_width": 4, "paint_order": "stroke"}
            if len(label) > _LONGEST_ROW:
                look |= {"textLength": RIGHT - 8, "lengthAdjust": "spacingAndGlyphs"}
            drawing.text((8.0, y - 10), label, "start", **look)
        name = NAMES[kind]  # type: ignore[index]
        caption = name[0].upper() + name[1:]
        pictures.append(as_picture(drawing, f"speedup-{kind}", caption, f"Speed-up of {name}: {'; '.join(told)}"))
    return pictures


def overview_pictures(comparison: Rows, speedups: Rows) -> list[Picture]:
    """Of any number of experiments: what accuracy each training reached in what time; how much faster the GPU is."""
    pictures = _times_and_accuracies([row for row in comparison if row["test_accuracy"] is not None])
    ordered = sorted((row for row in speedups if row["of"] == "epoch"), key=lambda row: row["speedup"])
    if not ordered:
        return pictures
    drawing, x = Drawing(FLOOR + BELOW), Scale(*_limits(ordered), 8.0, RIGHT, logarithmic=True)
    drawing.x_axis(x, 4.0, FLOOR, _IN_BETWEEN)
    drawing.line([(x(1.0), 4.0), (x(1.0), FLOOR)])
    for number, row in enumerate(ordered):
        height = 8 + (FLOOR - 12) * (number + 0.5) / len(ordered)
        _estimate(drawing, x, row, height, radius=1.2, title=row["experiment"])
    lowest, middle, highest = (ratio(ordered[place]["speedup"]) for place in (0, len(ordered) // 2, -1))
    told = f"The GPU's speed-up of an epoch: {lowest} to {highest}, half of them above {middle}"
    return [*pictures, as_picture(drawing, "speedups-in-order", "Speed-ups of an epoch, in order", told)]


def _times_and_accuracies(trained: Rows) -> list[Picture]:
    """Of what has an accuracy."""
    if not trained:
        return []
    times, accuracies = ([row[column] for row in trained] for column in ("total_seconds", "test_accuracy"))
    x = Scale(min(times) / 1.2, max(times) * 1.2, LEFT, RIGHT, logarithmic=True)
    y = Scale(max(0.0, min(accuracies) - 0.02), min(1.0, max(accuracies) + 0.02), FLOOR, 18.0)
    drawing = Drawing(FLOOR + BELOW)
    drawing.x_axis(x, 18.0, FLOOR, "seconds from start to end")
    drawing.y_axis(y, "test accuracy")
    _legend(drawing, dict.fromkeys((row["device"] for row in trained), ""))
    for row in trained:
        device, place = row["device"], (x(row["total_seconds"]), y(row["test_accuracy"]))
        colour, title = DEVICE_COLOURS[device], f"{row['experiment']} {device}"
        drawing.dot(place, colour, filled=False, square=device == "gpu", radius=1.6, title=title)
    told = (
        f"{len(trained)} trainings took {seconds(min(times))} to {seconds(max(times))} and reached "
        f"{min(accuracies):.2%} to {max(accuracies):.2%} test accuracy"
    )
    return [as_picture(drawing, "time-and-accuracy", "Time and accuracy", told)]


def break_even_pictures(points: Rows, break_evens: dict[tuple[str, ...], BreakEven]) -> list[Picture]:
    """One for each series, all to one scale: the speed-up against the batch size or a width, and where it passes 1."""
    points = [row | {"low": row["speedup_low"], "high": row["speedup_high"]} for row in points]
    y, pictures = Scale(*_limits(points), FLOOR, 6.0, logarithmic=True), []
    for (series, x_name), rows in grouped(points, "series", "x_name").items():
        x = Scale(rows[0]["x"] / 1.3, rows[-1]["x"] * 1.3, LEFT, RIGHT, logarithmic=True)
        drawing = Drawing(FLOOR + BELOW)
        drawing.x_axis(x, 6.0, FLOOR, x_name)
        drawing.y_axis(y, "speed-up")
        passes = _mark_break_even(drawing, x, y, break_evens[series, x_name])
        drawing.line([(LEFT, y(1.0)), (RIGHT, y(1.0))])
        drawing.line([(x(row["x"]), y(row["speedup"])) for row in rows], DEVICE_COLOURS["gpu"])
        for row in rows:
            _estimate(drawing, y, row, x(row["x"]), is_upright=True)
        told = "; ".join(f"{row['x']:g}: {ratio(row['speedup'])}" for row in rows)
        told = f"Speed-up by {x_name}: {told}"
        pictures.append(as_picture(drawing, f"break-even-{series}-{x_name}", f"{series}: {passes}", told))
    return pictures


def _mark_break_even(drawing: Drawing, x: Scale, y: Scale, found: BreakEven) -> str:
    """The line and what is said of it."""
    if found.size is None:
        return "no break-even within what was measured"
    told, low, high = f"break-even at {found.size:,.3g}", found.low, found.high
    place = x(found.size)
    drawing.line([(place, y.start), (place, y.end)], INK, stroke_dasharray="1 2", stroke_width=1.2)
    if low is None and high is None:
        return f"{told} by the medians, no interval"
    left, right = x.start if low is None else x(low), x.end if high is None else x(high)
    drawing.shape("rect", x=left, y=y.end, width=right - left, height=y.start - y.end, fill=SOFT, fill_opacity=0.18)
    bounds = "below" if low is None else f"{low:,.3g}", "above" if high is None else f"{high:,.3g}"
    return f"{told} ({' to '.join(bounds)})"


def step_pictures(attribution: Rows) -> list[Picture]:
    """One for each experiment: of each part of a step, a bar for each device."""
    pictures = []
    for (experiment,), rows in grouped(attribution, "experiment").items():
        devices, parts = grouped(rows, "device"), grouped(rows, "part")
        whole = {device: seconds(sum(row["median_seconds"] for row in own)) for (device,), own in devices.items()}
        left, thickness = 100.0, 8.0
        row_height = thickness * len(devices) + 6
        bottom = 18 + row_height * len(parts)
        drawing, x = Drawing(bottom + BELOW), Scale(0.0, 100.0, left, RIGHT - 22)
        _legend(drawing, whole)
        drawing.x_axis(x, 18.0, bottom, "percent of a step")
        for number, ((part,), own) in enumerate(parts.items()):
            top = 21 + row_height * number
            drawing.text((left - 4, top + thickness * len(devices) / 2), part, "end")
            for row in own:
                y, end = top + thickness * list(whole).index(row["device"]), x(100 * row["share"])
                colour = DEVICE_COLOURS[row["device"]]
                drawing.shape("rect", x=left, y=y, width=end - left, height=thickness - 1, fill=colour)
                drawing.text((end + 3, y + thickness / 2), f"{row['share']:.0%}", "start")
        told = [f"{row['device']} {row['part']} {seconds(row['median_seconds'])}" for row in rows]
        said = f"The parts of a step of {experiment}: {listed(told)}"
        pictures.append(as_picture(drawing, f"step-{experiment}", experiment, said))
    return pictures


def learning_curves(history: Rows) -> list[Picture]:
    """One for each experiment, with a line for each device: against epochs, and against seconds, both from 0."""
    pictures = []
    for (experiment,), rows in grouped(history, "experiment").items():
        devices = {device: own for (device,), own in grouped(rows, "device").items()}
        losses = [loss for row in rows if math.isfinite(loss := row["validation_loss"])]
        lowest, highest = min([0.0, *losses]), max([0.0, *losses])
        drawing = Drawing(264.0)
        _legend(drawing, dict.fromkeys(devices, ""))
        shown = (18.0, "epoch", "epoch"), (146.0, "training_seconds_so_far", "seconds of training")
        for top, column, label in shown:
            x = Scale(0.0, max(row[column] for row in rows), LEFT, RIGHT - 4)
            y = Scale(1.05 * lowest, 1.05 * highest if lowest or highest else 1.0, top + 90, top)
            drawing.x_axis(x, top, y.start, label)
            drawing.y_axis(y, "validation loss")
            for device, own in devices.items():
                _curve(drawing, device, x, y, ((row[column], row["validation_loss"]) for row in own))
        told = [
            f"on the {device.upper()} from {own[0]['validation_loss']:.3g} to {own[-1]['validation_loss']:.3g} in "
            f"{len(own)} epochs and {seconds(own[-1]['training_seconds_so_far'])} of training"
            for device, own in devices.items()
        ]
        said = f"Validation loss of {experiment}: {listed(told)}"
        pictures.append(as_picture(drawing, f"loss-{experiment}", experiment, said))
    return pictures


def _curve(drawing: Drawing, device: str, x: Scale, y: Scale, points: Iterable[tuple[float, float]]) -> None:
    """What is no number is left out."""
    places = [(x(value), y(loss)) for value, loss in points if math.isfinite(loss)]
    colour = DEVICE_COLOURS[device]
    drawing.line(places, colour, stroke_width=1.5, stroke_dasharray=_DASHES[device])
    for place in places if len(places) <= _MOST_MARKED_EPOCHS else ():
        drawing.dot(place, colour, square=device == "gpu", radius=1.5)


def confusion_pictures(confusion: Rows) -> dict[str, list[Picture]]:
    """Of each experiment, one for each device."""
    pictures: dict[str, list[Picture]] = {}
    for (experiment, device), rows in grouped(confusion, "experiment", "device").items():
        names = list(dict.fromkeys(row["actual"] for row in rows))
        matrix = np.array([row["images"] for row in rows]).reshape(len(names), len(names))
        drawing = _drawn_matrix(matrix, names)
        right, wrong = int(np.trace(matrix)), matrix - np.diag(np.diag(matrix))
        told = f"{right:,} of {matrix.sum():,} images right"
        if wrong.any():
            row, column = np.unravel_index(wrong.argmax(), wrong.shape)
            told += f"; the commonest mistake: {names[row]} taken for {names[column]} ({wrong[row, column]:,})"
        told = f"Confusion matrix of {experiment}, {device.upper()}: {told}"
        picture = as_picture(drawing, f"confusion-{experiment}-{device}", device.upper(), told)
        pictures.setdefault(experiment, []).append(picture)
    return pictures


def _drawn_matrix(matrix: npt.NDArray[np.int_], names: Sequence[str]) -> Drawing:
    """A cell without images shows the page, be it light or dark."""
    count, shares = len(names), matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    labels = [_shortened(name) for name in names] if count <= _MOST_NAMED else []
    longest = max(map(text_width, labels), default=0.0)
    are_upright = longest > 2 * CHARACTER
    left, below = 18 + longest, 8 + (longest if are_upright else 8)
    side = RIGHT - left
    cell = side / count
    drawing = Drawing(4 + side + below + 14)
    shades = np.ceil(shares * _SHADES).astype(int)
    for shade in np.unique(shades[shades > 0]).tolist():
        cells = "".join(f"M{column} {row}h1v1h-1z" for row, column in np.argwhere(shades == shade).tolist())
        placed = f"translate({left:.5g} 4) scale({cell:.5g})"
        drawing.shape("path", d=cells, fill=_BLUE, fill_opacity=shade / _SHADES, transform=placed)
    drawing.shape("rect", x=left, y=4, width=side, height=side, fill="none", stroke=SOFT)
    for number, label in enumerate(labels):
        middle = cell * (number + 0.5)
        drawing.text((left - 4, 4 + middle), label, "end")
        if are_upright:
            drawing.upright((left + middle, 8 + side), label, "end")
        else:
            drawing.text((left + middle, 12 + side), label)
    drawing.text((left + side / 2, 4 + side + below + 6), "predicted")
    drawing.upright((6.0, 4 + side / 2), "actual")
    if count <= _MOST_NUMBERED:
        for row, column in np.argwhere(matrix).tolist():
            colour = "#ffffff" if shares[row, column] >= _STRONG_SHARE else INK
            place = left + cell * (column + 0.5), 4 + cell * (row + 0.5)
            drawing.text(place, str(matrix[row, column]), colour=colour, font_size=6.5)
    return drawing


def _shortened(name: str) -> str:
    if text_width(name) <= _LONGEST_NAME:
        return name
    while text_width(name) > _LONGEST_NAME - CHARACTER:
        name = name[:-1]
    return f"{name}\N{HORIZONTAL ELLIPSIS}"


def _legend(drawing: Drawing, devices: dict[str, str]) -> None:
    """Above what is drawn, each with a note; of one device alone too, as its colour tells nothing by itself."""
    for number, (device, note) in enumerate(devices.items()):
        left, y, colour = LEFT + 100 * number, 8.0, DEVICE_COLOURS[device]
        drawing.line([(left, y), (left + 18, y)], colour, stroke_width=1.5, stroke_dasharray=_DASHES[device])
        drawing.dot((left + 9, y), colour, square=device == "gpu", radius=1.5)
        drawing.text((left + 22, y), f"{device.upper()} {note}".strip(), "start")


def _estimate(
    drawing: Drawing, scale: Scale, row: dict[str, Any], other: float, *,
    is_upright: bool = False, radius: float = 3.0, title: str = "",
) -> None:  # fmt: skip
    """A dot with its interval; open where there is none: a ratio of which it isn't known how sure it is."""
    colour, interval = DEVICE_COLOURS["gpu"], _interval(row)

    def place(value: float) -> tuple[float, float]:
        return (other, scale(value)) if is_upright else (scale(value), other)

    if interval:
        drawing.line([place(end) for end in interval], colour, stroke_width=0.7 * radius)
    drawing.dot(place(row["speedup"]), colour, filled=interval is not None, radius=radius, title=title)


def _interval(row: dict[str, Any]) -> tuple[float, float] | None:
    return None if row["low"] is None else (row["low"], row["high"])


def _limits(rows: Rows) -> tuple[float, float]:
    known = [row[column] for row in rows for column in ("speedup", "low", "high") if row[column] is not None]
    return min([1 / _LEAST_SPAN, *(value / 1.2 for value in known)]), max([_LEAST_SPAN, *known]) * 1.2
