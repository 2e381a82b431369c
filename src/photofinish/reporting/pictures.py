"""Pictures: each job's times, a heat map, and for one job where and when a GPU pays, and losses.

A job's pictures are drawn only where they decide something.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator

from photofinish.answer.record import Candidate, DeviceLabel, Grid, Interval, JobRecord
from photofinish.reporting.answer_words import gpu_words, model_text, phrase, runs_text
from photofinish.reporting.drawing import (
    DEVICE_COLOURS,
    INK,
    LINES,
    MARKERS,
    SMALL,
    SMALL_STYLE,
    SOFT,
    STYLE,
    WIDTH,
    YES,
    Picture,
    as_picture,
    panel,
)
from photofinish.reporting.say import say
from photofinish.reporting.sentences import SHORT_PARTS
from photofinish.results import EpochMetrics
from photofinish.wording import HIGH, MOST_WIDTH, is_wide, limit, money, seconds, times

_TIMES = (0.1, 1, 10, 60, 600, 3600, 36000, 360000)
"""Marked times of the axis: 10 s, 60 s, 10 min, 60 min, 10 h."""
_LONGEST_NAME = 40
_PART_COLOURS = {
    "waiting for data": "#c9930a",
    "copying to the device": "#8a929b",
    "forward": "#2a8f83",
    "backward": "#7b68ae",
    "optimizer": "#b5495b",
    "the rest": "#c9ced4",
    "computing": "#2a8f83",
}
_HEIGHT = 1.95
_MOST_MARKED_EPOCHS = 30
_MOST_GPUS = 8
_LEAST_APART = 1.1
"""Smallest ratio of two GPUs' times that a picture shows, by hand."""
_NAME_WIDTH, _NAME_HEIGHT = 75, 9
"""Size of a GPU's name, in points."""


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
        name, cpu_seconds = job.name[:_LONGEST_NAME], worth.cpu_time.seconds
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
        _dot(axes, y, cpu_seconds, worth.cpu_time.interval, "cpu", say("picture of here"))
        if not job.gpu:
            label = say("infinitely fast", limit=None)
            least = max(_TIMES[0], job.bounds.job.staying_seconds)
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


class _Line(NamedTuple):
    """Time that begins with a start and grows with each run."""

    name: str
    start_seconds: float
    run_seconds: float


def job_pictures(job: JobRecord) -> list[Picture]:
    pictures = when_rent_pays(job), which_gpu(job), where_a_step_goes(job), losses(job)
    return [picture for picture in pictures if picture]


@rc_context(SMALL_STYLE)
def when_rent_pays(job: JobRecord) -> Picture | None:
    """Draw the time over the number of runs, here and on a GPU that is rented once for all.

    Return None where it pays at once, or where the number of runs is not known or large.
    """
    worth = job.worth
    gpu, runs = worth.gpu, worth.runs
    if gpu is None or runs is None or worth.is_yes or is_wide(gpu.time.interval):
        return None
    terms, gpu_seconds = worth.terms, gpu.time.seconds
    lines = (
        _Line(say("picture of here"), 0.0, worth.cpu_time.seconds),
        _Line(say("rented", gpu=gpu.name), terms.start_seconds, gpu_seconds),
        _Line(say("and minimum", worth=worth), terms.least_seconds, gpu_seconds),
    )
    crossing = terms.least_seconds / (worth.cpu_time.seconds - gpu_seconds)
    most = max(2.0, 2 * crossing, 1.2 * runs.surely)
    figure, axes = panel(SMALL, _HEIGHT)
    size, time_unit = _unit(max(line.start_seconds + most * line.run_seconds for line in lines))
    looks = ("cpu", LINES["cpu"]), ("gpu", LINES["gpu"]), ("gpu", ":")
    for (label, start_seconds, run_seconds), (device, style) in zip(lines, looks, strict=True):
        ends = start_seconds / size, (start_seconds + most * run_seconds) / size
        axes.plot((0, most), ends, style, color=DEVICE_COLOURS[device], label=label)
    axes.axvspan(*runs, color=INK, alpha=0.12, linewidth=0)
    axes.set(xlabel="runs", ylabel=time_unit, xlim=(0, most))
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    figure.legend(loc="outside upper left", ncols=2)
    note = say("sentence", text=runs_text(runs))
    texts = [say("described line", it=line) for line in lines]
    description = say("described lines", unit="runs", lines=texts, note=note)
    return as_picture(figure, f"pays-{job.name}", say("pays picture"), description, note)


@rc_context(SMALL_STYLE)
def which_gpu(job: JobRecord) -> Picture | None:
    """Draw the cost of each GPU that may be rented over its time, both with setup.

    Return None where no GPU pays, or where all take about as long.
    """
    worth = job.worth
    if worth.gpu is None or (worth.is_here and not worth.is_yes):
        return None
    gpus = [gpu for gpu in job.candidates if gpu.cost and not is_wide(gpu.time.interval)]
    gpus.sort(key=lambda gpu: (gpu.name != worth.gpu_name, gpu.value))
    gpus = gpus[:_MOST_GPUS]
    times = [gpu.with_start_seconds for gpu in gpus]
    if max(times, default=0.0) <= _LEAST_APART * min(times, default=0.0):
        return None
    prices = [gpu.terms.price for gpu in gpus if gpu.terms.price]
    costs, currency = [gpu.cost or 0.0 for gpu in gpus], prices[0].currency
    figure, axes = panel(SMALL, _HEIGHT)
    size, unit = _unit(max(times))
    for gpu, time, cost in zip(gpus, times, costs, strict=True):
        look = "full" if gpu.name == worth.gpu_name else "none"
        axes.plot(time / size, cost, "o", color=DEVICE_COLOURS["gpu"], fillstyle=look)
    spread = max(max(times) - min(times), 0.2 * max(times)) / size
    right = max(times) / size + 0.6 * spread  # leaves room for names
    axes.set(xlabel=unit, ylabel=currency, xlim=(min(times) / size - 0.15 * spread, right))
    axes.set_ylim(0.7 * min(costs), 1.5 * max(costs))
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.xaxis.set_major_locator(MaxNLocator(4))
    names = list(map(_marked, gpus))
    figure.draw_without_rendering()  # lays the axes out, on which the names depend
    _name_dots(axes, [time / size for time in times], costs, names)
    dates = [price.as_of for price in prices if price.as_of]
    setup_seconds = max(gpu.terms.start_seconds for gpu in gpus)
    note = say("gpus note", setup=setup_seconds, oldest=min(dates, default=None)).strip()
    texts = [
        say("described gpu", name=name, time=time, cost=money(cost, currency))
        for name, time, cost in zip(names, times, costs, strict=True)
    ]
    description = say("described gpus", setup=setup_seconds, gpus=texts)
    return as_picture(figure, f"gpus-{job.name}", say("gpus picture"), description, note)


def _marked(gpu: Candidate) -> str:
    name = gpu.name
    if gpu.basis == "recorded":
        name += "*"
    elif gpu.option and gpu.option.fits == "perhaps":
        name += "?"
    gpus = gpu.terms.price.gpus if gpu.terms.price else 1
    return say("name of several", name=name, gpus=gpus) if gpus > 1 else name


def _name_dots(
    axes: Axes, times: Sequence[float], costs: Sequence[float], names: Sequence[str]
) -> None:
    """Write each dot's name beside it, above the names that it would cover."""
    points = axes.transData.transform(np.column_stack([times, costs])) * 72 / axes.figure.dpi
    taken: list[tuple[float, float]] = []
    for place in np.argsort(costs, kind="stable").tolist():
        x, y = points[place]
        up = 0
        while any(abs(x - a) < _NAME_WIDTH and abs(y + up - b) < _NAME_HEIGHT for a, b in taken):
            up += 1
        taken.append((x, y + up))
        dot = times[place], costs[place]
        axes.annotate(names[place], dot, (5, up), textcoords="offset points", va="center")


@rc_context(SMALL_STYLE)
def where_a_step_goes(job: JobRecord) -> Picture | None:
    """Draw a bar for each device of a step's parts, which add up to the step."""
    steps = {device: step for device, step in job.steps.items() if step.shares and step.seconds}
    if not steps:
        return None
    figure, axes = panel(SMALL, 0.6 + 0.85 * len(steps))
    names = dict.fromkeys(part for step in steps.values() for part in step.shares)
    parts = {part: [step.shares.get(part, 0.0) for step in steps.values()] for part in names}
    begin, devices, texts = [0.0] * len(steps), [], []
    for part, shares in parts.items():
        name = f"{SHORT_PARTS.get(part, part)} {' | '.join(f'{share:.0%}' for share in shares)}"
        axes.barh(range(len(steps)), shares, 0.4, begin, color=_PART_COLOURS[part], label=name)
        begin = [start + share for start, share in zip(begin, shares, strict=True)]
        texts.append(name)
    for y, (device, step) in enumerate(steps.items()):
        devices.append(say("device step", device=device.upper(), step=step.seconds))
        axes.text(0, y - 0.26, devices[-1], va="bottom")
    axes.set(xlim=(0, 1), ylim=(len(steps) - 0.6, -0.75))
    axes.set_axis_off()
    figure.legend(loc="outside lower left", ncols=3 - len(steps))
    captured = [run for run in job.runs if run.device in steps and run.in_graphs]
    note = say("in graphs") if captured else ""
    description = say("described step", devices=devices, parts=texts)
    return as_picture(figure, f"step-{job.name}", say("step picture"), description, note)


@rc_context(SMALL_STYLE)
def losses(job: JobRecord) -> Picture | None:
    """Draw the training loss by epoch on both devices, or on the CPU and in a GPU's record.

    Return None without both curves.
    """
    histories: list[tuple[str, DeviceLabel, Sequence[EpochMetrics]]] = [
        (run.device.upper(), run.device, run.history) for run in job.runs
    ]
    if recorded := job.model.record:
        histories.append((f"{recorded.gpu}*", "gpu", recorded.job.history))
    shortest = min(len(history) for _, _, history in histories)
    curves = []
    for label, device, history in histories:
        losses_of = {epoch.epoch: epoch.training_loss for epoch in history[:shortest]}
        if finite := [(epoch, loss) for epoch, loss in losses_of.items() if math.isfinite(loss)]:
            curves.append((label, device, finite))
    if len(curves) < 2:
        return None
    figure, axes = panel(SMALL, _HEIGHT)
    texts = []
    for label, device, points in curves:
        marker = MARKERS[device] if len(points) <= _MOST_MARKED_EPOCHS else ""
        line = axes.plot(*np.transpose(points), LINES[device], color=DEVICE_COLOURS[device])
        line[0].set(marker=marker, label=label)
        texts.append(say("described curve", device=label, first=points[0][1], last=points[-1][1]))
    axes.set(xlabel="epoch", ylabel="training loss")
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    figure.legend(loc="outside upper left", ncols=2)
    description = say("described losses", epochs=shortest, curves=texts)
    model = model_text(job)
    note = say("sentence", text=model) if model else ""
    return as_picture(figure, f"loss-{job.name}", say("losses picture"), description, note)


def _unit(most_seconds: float) -> tuple[float, str]:
    """Return the unit of an axis of times: its seconds, and its name."""
    units = ((3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"))
    return next((unit for unit in units if most_seconds >= 2 * unit[0]), units[-1])
