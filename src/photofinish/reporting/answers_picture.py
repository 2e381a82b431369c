"""Pictures of all answers: each job's time here and on the GPU of its answer, and a heat map."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FixedLocator

from photofinish.answer.comparison import Comparison
from photofinish.answer.decision import Decision
from photofinish.answer.grid import Grid
from photofinish.answer.uncertainty import Interval
from photofinish.answer.word import of_one_training
from photofinish.reporting.answer_words import gpu_words, phrase
from photofinish.reporting.drawing import (
    DEVICE_COLOURS,
    INK,
    STYLE,
    WIDTH,
    Picture,
    as_picture,
    panel,
)
from photofinish.reporting.say import say
from photofinish.wording import HIGH, MOST_WIDTH, is_wide, limit, seconds, times

_START_COLOUR = "#8a929b"
_TIMES = (0.1, 1, 10, 60, 600, 3600, 36000, 360000)
"""Marked times of the axis: 10 s, 60 s, 10 min, 60 min, 10 h."""
_LONGEST_NAME = 40
_BAR = 0.26


@rc_context(STYLE)
def all_jobs(pairs: Sequence[Comparison], decisions: Sequence[Decision]) -> Picture:
    """Draw the time of each job on a logarithmic axis, with whiskers that hold 9 of 10."""
    figure, axes = panel(WIDTH, 0.7 + 0.5 * len(pairs))
    axes.set_xscale("log")
    shortest = min(pair.cpu.timings.startup_seconds for pair in pairs)
    left = max(0.1, 0.5 * shortest)
    descriptions = []
    for y, (pair, decision) in enumerate(zip(pairs, decisions, strict=True)):
        worth = of_one_training(pair, decision.worth)
        name = f"{pair.experiment[:_LONGEST_NAME]}: {phrase(decision)}"
        axes.text(0.01, y - 0.3, name, transform=axes.get_yaxis_transform(), fontweight="bold")
        here = worth.here.seconds
        start = min(here, pair.cpu.timings.startup_seconds)
        _bar(axes, y, left, start, here, "cpu", worth.here.interval)
        texts = [f"{pair.experiment}: {phrase(decision)}; {seconds(here)} here"]
        if worth.gpu and not is_wide(worth.gpu.time.interval):
            there = worth.there_seconds
            start = pair.gpu.timings.startup_seconds if pair.gpu else worth.terms.start_seconds
            _bar(axes, y + _BAR, left, start, there, "gpu", worth.gpu.interval_with_start)
            with_start = f" with {say('its start')}" if start else ""
            texts.append(f"{seconds(there)} on {gpu_words(worth)}{with_start}")
        if not pair.compared:
            least = max(left, pair.bounds.job.measured_seconds)
            axes.plot([least] * 2, [y - 0.16, y + 0.42], color=INK, linewidth=1, linestyle=":")
            texts.append(say("infinitely fast", limit=least))
        descriptions.append(", ".join(texts))
    axes.set_ylim(len(pairs) - 0.4, -0.75)
    axes.set_xlim(left=left)
    axes.set_yticks([])
    axes.grid(axis="y", visible=False)
    axes.xaxis.set_major_locator(FixedLocator(_TIMES))
    axes.xaxis.set_major_formatter(lambda value, _place: seconds(value))
    axes.minorticks_off()
    handles = [
        Patch(color=DEVICE_COLOURS["cpu"], label=say("picture of here")),
        Patch(color=DEVICE_COLOURS["gpu"], label=say("picture of there")),
        Patch(color=_START_COLOUR, label=say("picture of start")),
    ]
    figure.legend(handles=handles, loc="outside lower left", ncols=3, fontsize=8, handlelength=1)
    description = say("described answers", answers="; ".join(descriptions))
    has_limits = not all(pair.compared for pair in pairs)
    dotted = say("infinitely fast", limit=None) if has_limits else ""
    return as_picture(figure, "answers", say("answers picture", dotted=dotted), description)


def _bar(
    axes: Axes,
    y: float,
    left: float,
    start_seconds: float,
    whole_seconds: float,
    device: str,
    interval: Interval,
) -> None:
    """Draw the start, then the rest of a time, and a whisker over its interval."""
    start = max(left, start_seconds)
    axes.barh(y, start - left, left=left, height=_BAR * 0.8, color=_START_COLOUR)
    rest = max(0.0, whole_seconds - start)
    axes.barh(y, rest, left=start, height=_BAR * 0.8, color=DEVICE_COLOURS[device])
    if not math.isfinite(interval[1]):
        return
    low, high = max(left, interval[0]), min(interval[1], MOST_WIDTH * whole_seconds)
    axes.plot([low, high], [y, y], color=INK, linewidth=1)
    for end in (low, high):
        axes.plot([end, end], [y - 0.06, y + 0.06], color=INK, linewidth=1)


@rc_context(STYLE)
def heat_map(grid: Grid) -> Picture:
    """Draw a GPU's speed-up, or its bound, over two settings."""
    columns, rows = len(grid.columns), len(grid.rows)
    figure, axes = panel(WIDTH, 1.0 + 0.45 * rows)
    # A cell with a bound has no colour, because a bound does not show how fast a GPU is.
    logs = {
        place: 0.0 if cell.is_bound else math.log(cell.figure) for place, cell in grid.cells.items()
    }
    most = max(0.7, *map(abs, logs.values()))
    axes.set(xlim=(0, columns), ylim=(0, rows))
    axes.set_xticks([column + 0.5 for column in range(columns)], grid.columns)
    axes.set_yticks([row + 0.5 for row in range(rows)], grid.rows)
    axes.set(xlabel=grid.column_key, ylabel=grid.row_key)
    axes.grid(visible=False)
    descriptions = []
    for y, row in enumerate(grid.rows):
        for x, column in enumerate(grid.columns):
            cell = grid.cells[row, column]
            faster = times(cell.figure)
            if cell.is_bound:
                faster = f"up to {faster}" if cell.figure <= HIGH else limit(cell.figure)
            text = f"{faster}\n{cell.answer}"
            log = logs[row, column]
            colour = DEVICE_COLOURS["gpu" if log > 0 else "cpu"]
            alpha = 0.6 * abs(log) / most
            axes.add_patch(Rectangle((x, y), 1, 1, color=colour, alpha=alpha, linewidth=0))
            axes.text(x + 0.5, y + 0.5, text, ha="center", va="center", fontsize=7)
            descriptions.append(f"{row}, {column}: {text}".replace("\n", " "))
    caption = f"By {grid.row_key} and {grid.column_key}"
    return as_picture(figure, "grid", caption, f"{caption}: {'; '.join(descriptions)}")
