"""Pictures of all answers: each job's times, and a heat map."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator

from photofinish.answer.record import DeviceLabel, Grid, Interval, JobRecord
from photofinish.reporting.answer_words import gpu_words, phrase
from photofinish.reporting.drawing import (
    DEVICE_COLOURS,
    INK,
    MARKERS,
    SOFT,
    STYLE,
    WIDTH,
    YES,
    Picture,
    as_picture,
    panel,
)
from photofinish.reporting.say import say
from photofinish.wording import HIGH, MOST_WIDTH, is_wide, limit, seconds, times

_TIMES = (0.1, 1, 10, 60, 600, 3600, 36000, 360000)
"""Marked times of the axis: 10 s, 60 s, 10 min, 60 min, 10 h."""
_LONGEST_NAME = 40


@rc_context(STYLE)
def all_jobs(jobs: Sequence[JobRecord]) -> Picture:
    """Draw each job's time here, joined to that on the GPU, on a logarithmic axis.

    Whiskers hold 9 of 10. The join is green where the GPU is worth it.
    """
    figure, axes = panel(WIDTH, 0.9 + 0.4 * len(jobs))
    axes.set_xscale("log")
    descriptions = []
    for y, job in enumerate(jobs):
        worth = job.one_training
        name, cpu_seconds = job.name[:_LONGEST_NAME], worth.here.seconds
        axes.text(0.01, y - 0.3, name, transform=axes.get_yaxis_transform(), fontweight="bold")
        texts = [f"{job.name}: {phrase(job.worth)}; {seconds(cpu_seconds)} here"]
        if worth.gpu and not is_wide(worth.gpu.time.interval):
            gpu_seconds, setup = worth.there_seconds, worth.terms.start_seconds
            colour, label = (YES, say("picture of saving")) if worth.is_yes else (SOFT, "_")
            axes.plot([cpu_seconds, gpu_seconds], [y, y], color=colour, linewidth=2, label=label)
            if setup:
                axes.plot(setup, y, "|", color=INK, markersize=9, label=say("picture of setup"))
            label = say("picture of there")
            _dot(axes, y, gpu_seconds, worth.gpu.interval_with_start, "gpu", label)
            texts.append(
                say("described there", time=gpu_seconds, gpu=gpu_words(worth), setup=setup)
            )
        _dot(axes, y, cpu_seconds, worth.here.interval, "cpu", say("picture of here"))
        if not job.gpu:
            label = say("infinitely fast", limit=None)
            least = max(_TIMES[0], job.stays_seconds)
            axes.vlines(least, y - 0.2, y + 0.2, INK, ":", label=label, linewidth=1)
            texts.append(say("infinitely fast", limit=least))
        descriptions.append(", ".join(texts))
    axes.set_ylim(len(jobs) - 0.5, -0.7)
    axes.set_xlim(*np.multiply(axes.get_xlim(), (0.5, 2)))  # so that a decade is marked
    axes.set_yticks([])
    axes.grid(axis="y", visible=False)
    axes.xaxis.set_major_locator(FixedLocator(_TIMES))
    axes.xaxis.set_major_formatter(lambda value, _place: seconds(value))
    axes.minorticks_off()
    handles, labels = axes.get_legend_handles_labels()
    shown = dict(zip(labels, handles, strict=True))  # each label once
    figure.legend(shown.values(), shown, loc="outside lower left", ncols=2, fontsize=8)
    description = say("described answers", answers="; ".join(descriptions))
    return as_picture(figure, "answers", say("answers picture"), description)


def _dot(
    axes: Axes, y: float, time: float, interval: Interval, device: DeviceLabel, label: str
) -> None:
    """Draw a time, with a whisker over its interval if that is finite."""
    low, high = (min(max(end, time / MOST_WIDTH), time * MOST_WIDTH) for end in interval)
    ends = [[max(0.0, time - low)], [max(0.0, high - time)]]
    look: Any = {"color": DEVICE_COLOURS[device], "ecolor": INK, "elinewidth": 1, "capsize": 2}
    errors = ends if math.isfinite(interval[1]) else None
    axes.errorbar(time, y, None, errors, MARKERS[device], label=label, **look)


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
