"""The report's pictures: speed-ups, times and costs, break-evens, the parts of a step, learning curves, confusions.

Each is an SVG with its colours left to the page.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from photofinish.comparing.pairs import Pair
from photofinish.comparing.renting import NEXT_TO_NOTHING, cost_of, front, price_of
from photofinish.comparing.scaling import BreakEven
from photofinish.comparing.speedups import NAMES
from photofinish.params.compare import accelerators
from photofinish.report.drawing import (
    BELOW,
    CHARACTER,
    DEVICE_COLOURS,
    FLOOR,
    INK,
    LEFT,
    PAPER,
    RIGHT,
    SOFT,
    Drawing,
    Picture,
    Point,
    Scale,
    text_width,
)
from photofinish.report.rows import Rows, grouped
from photofinish.wording import listed, money, ratio, seconds

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
_COLOURS = {"bound": "#009e73", "estimate": "#cc79a7", **DEVICE_COLOURS, "record": "#e69f00"}
_OUTLINES = {"bound": "l4 4l-4 4l-4 -4z", "estimate": "l4 7h-8z"}
"""a diamond and a triangle, from their tips on; what was measured is a filled dot"""
_MARKS = {
    "bound": ("at least", 56),
    "estimate": ("estimated", 62),
    "cpu": ("CPU here", 55),
    "gpu": ("GPU here", 55),
    "record": ("elsewhere", 0),
}
"""what a mark is, and how far from it the next one is"""
_MOST_OFFERS_NAMED = 8
"""beside their marks; of more, those on the front alone"""
_IN_BETWEEN = "the CPU is faster  \N{LEFTWARDS ARROW}  speed-up  \N{RIGHTWARDS ARROW}  the GPU is faster"


def speedup_pictures(speedups: Rows) -> Iterator[Picture]:
    """One for each kind, drawn to the same scale: a row for each experiment."""
    x = Scale(*_limits(speedups), 8.0, RIGHT, logarithmic=True)
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
        yield drawing.picture(f"speedup-{kind}", caption, f"Speed-up of {name}: {'; '.join(told)}")


def overview_pictures(comparison: Rows, speedups: Rows) -> Iterator[Picture]:
    """Of any number of experiments: what accuracy each training reached in what time; how much faster the GPU is."""
    if judged := [row for row in comparison if row["test_accuracy"] is not None]:
        yield _times_and_accuracies(judged)
    ordered = sorted((row for row in speedups if row["of"] == "epoch"), key=lambda row: row["speedup"])
    if not ordered:
        return
    drawing, x = Drawing(FLOOR + BELOW), Scale(*_limits(ordered), 8.0, RIGHT, logarithmic=True)
    drawing.x_axis(x, 4.0, FLOOR, _IN_BETWEEN)
    drawing.line([(x(1.0), 4.0), (x(1.0), FLOOR)])
    for number, row in enumerate(ordered):
        height = 8 + (FLOOR - 12) * (number + 0.5) / len(ordered)
        _estimate(drawing, x, row, height, radius=1.2, title=row["experiment"])
    lowest, middle, highest = (ratio(ordered[place]["speedup"]) for place in (0, len(ordered) // 2, -1))
    told = f"The GPU's speed-up of an epoch: {lowest} to {highest}, half of them above {middle}"
    yield drawing.picture("speedups-in-order", "Speed-ups of an epoch, in order", told)


def _times_and_accuracies(trained: Rows) -> Picture:
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
    return drawing.picture("time-and-accuracy", "Time and accuracy", told)


def renting_pictures(pairs: Iterable[Pair]) -> Iterator[Picture]:
    """Time against cost, of each experiment that is known to cost more than next to nothing."""
    for pair in pairs:
        bounds = {
            offer.accelerator.name: (offer.job_seconds, offer.cost)
            for offer in pair.renting.offers
            if offer.cost and offer.job_seconds and offer.fits != "no"
        }
        if max((cost for _, cost in bounds.values()), default=0.0) >= NEXT_TO_NOTHING:
            yield _times_and_costs(pair, bounds)


def _times_and_costs(pair: Pair, bounds: dict[str, Point]) -> Picture:
    currency = next(offer.price.currency for offer in pair.renting.offers if offer.price)
    marks = [("bound", f"{name}: at least", place) for name, place in bounds.items()]
    marks += [
        ("estimate", f"{offer.accelerator.name}, estimated:", (about.job_seconds, about.cost))
        for offer in pair.renting.offers
        if (about := offer.estimate) and about.cost and offer.fits != "no"
    ]
    for run in pair.trained:
        if amount := pair.outlays[run.device].cost.amount:
            marks.append((run.device, f"{run.device.upper()}, measured:", (run.timings.total_seconds, amount)))
    marks += [("record", f"{name}, recorded elsewhere:", place) for name, place in _recorded_elsewhere(pair).items()]
    times, costs = zip(*(place for *_, place in marks), strict=True)
    x = Scale(min(times) / 1.5, max(times) * 1.5, LEFT, RIGHT, logarithmic=True)
    y = Scale(min(costs) / 1.5, max(costs) * 1.5, FLOOR, 18.0, logarithmic=True)
    drawing = Drawing(FLOOR + BELOW)
    drawing.x_axis(x, 18.0, FLOOR, "seconds of the whole job")
    drawing.y_axis(y, currency)
    _legend_of_marks(drawing, {kind for kind, *_ in marks})
    best = front(list(bounds.values()))
    drawing.line([(x(time), y(cost)) for time, cost in best], _COLOURS["bound"], stroke_dasharray="3 2")
    for kind, what, (time, cost) in marks:
        _mark(drawing, kind, (x(time), y(cost)), f"{what} {seconds(time)} and {money(cost, currency)}")
    for name, (time, cost) in bounds.items():
        if (time, cost) in best or len(bounds) <= _MOST_OFFERS_NAMED:
            _name(drawing, (x(time), y(cost)), name)
    told = "; ".join(f"{name} {seconds(time)} and {money(cost, currency)}" for name, (time, cost) in bounds.items())
    told = f"At least, by data sheets, {pair.experiment} takes and costs on {told}"
    return drawing.picture(f"renting-{pair.experiment}", f"{pair.experiment}: {pair.renting.prices}", told)


def _recorded_elsewhere(pair: Pair) -> dict[str, Point]:
    """What other machines' GPUs took for the same training, and what that costs where a price is known."""
    names = {each.full_name: each.name for each in accelerators().values()}
    found = {}
    for each in pair.elsewhere:
        timings = each.reference.timings
        name = names.get(timings.device_name)
        price = price_of(name, pair.settings.prices) if name and timings.device_count == 1 else None  # of one alone
        if name and (cost := cost_of(timings.total_seconds, price)):
            found[name] = (timings.total_seconds, cost)
    return found


def _mark(drawing: Drawing, kind: str, place: Point, title: str = "") -> None:
    if kind in _OUTLINES:
        drawing.outline(place, _OUTLINES[kind], _COLOURS[kind], title)
    else:
        drawing.dot(place, _COLOURS[kind], square=kind != "cpu", title=title)


def _name(drawing: Drawing, place: Point, name: str) -> None:
    """Beside its mark, on the side where there is room."""
    x, y = place
    is_left = x + 6 + text_width(name) < RIGHT
    drawing.text((x + 6 if is_left else x - 6, y - 3), name, "start" if is_left else "end", INK)


def _legend_of_marks(drawing: Drawing, shown: set[str]) -> None:
    left = LEFT + 4
    for kind, (told, width) in _MARKS.items():
        if kind in shown:
            _mark(drawing, kind, (left, 8.0))
            drawing.text((left + 7, 8.0), told, "start")
            left += width


def break_even_pictures(points: Rows, break_evens: dict[tuple[str, ...], BreakEven]) -> Iterator[Picture]:
    """One for each series, all to one scale: the speed-up against the batch size or a width, and where it passes 1."""
    points = [row | {"low": row["speedup_low"], "high": row["speedup_high"]} for row in points]
    y = Scale(*_limits(points), FLOOR, 6.0, logarithmic=True)
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
        yield drawing.picture(f"break-even-{series}-{x_name}", f"{series}: {passes}", told)


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


def step_pictures(attribution: Rows) -> Iterator[Picture]:
    """One for each experiment: of each part of a step, a bar for each device."""
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
        yield drawing.picture(f"step-{experiment}", experiment, said)


def learning_curves(history: Rows) -> Iterator[Picture]:
    """One for each experiment, with a line for each device: against epochs, and against seconds, both from 0."""
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
        yield drawing.picture(f"loss-{experiment}", experiment, said)


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
        picture = drawing.picture(f"confusion-{experiment}-{device}", device.upper(), told)
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
