"""Pictures of a job: when a GPU pays, which GPU, where a step goes, both models' losses.

Each is drawn only where it decides something.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, MaxNLocator

from photofinish.answer.record import Candidate, DeviceLabel, JobRecord
from photofinish.reporting.answer_words import runs_text
from photofinish.reporting.drawing import (
    DEVICE_COLOURS,
    INK,
    LINES,
    MARKERS,
    SMALL,
    SMALL_STYLE,
    Picture,
    as_picture,
    panel,
)
from photofinish.reporting.model_words import model_text
from photofinish.reporting.say import say
from photofinish.reporting.sentences import SHORT_PARTS
from photofinish.results import EpochMetrics
from photofinish.wording import is_wide, money

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


class _Line(NamedTuple):
    """Time that begins with a start and grows with each run or epoch."""

    name: str
    start_seconds: float
    each_seconds: float


def job_pictures(job: JobRecord) -> list[Picture]:
    pictures = when_rent_pays(job), which_gpu(job), where_a_step_goes(job), losses(job)
    return [each for each in pictures if each]


@rc_context(SMALL_STYLE)
def when_rent_pays(job: JobRecord) -> Picture | None:
    """Draw the time over the number of runs, here and on a GPU that is rented once for all.

    Return None where it pays at once, or where the number of runs is not known or large.
    """
    worth = job.decision.worth
    gpu, runs = worth.gpu, worth.runs
    if gpu is None or runs is None or worth.is_yes or is_wide(gpu.time.interval):
        return None
    terms, there = worth.terms, gpu.time.seconds
    lines = (
        _Line(say("picture of here"), 0.0, worth.here.seconds),
        _Line(say("rented", gpu=gpu.name), terms.start_seconds, there),
        _Line(say("and minimum", worth=worth), terms.least_seconds, there),
    )
    crossing = terms.least_seconds / (worth.here.seconds - there)
    most = max(2.0, 2 * crossing, 1.2 * runs.surely)
    figure, axes = panel(SMALL, _HEIGHT)
    size, time_unit = _unit(max(each.start_seconds + most * each.each_seconds for each in lines))
    looks = ("cpu", LINES["cpu"]), ("gpu", LINES["gpu"]), ("gpu", ":")
    for (label, start_seconds, each_seconds), (device, style) in zip(lines, looks, strict=True):
        ends = start_seconds / size, (start_seconds + most * each_seconds) / size
        axes.plot((0, most), ends, style, color=DEVICE_COLOURS[device], label=label)
    axes.axvspan(*runs, color=INK, alpha=0.12, linewidth=0)
    axes.set(xlabel="runs", ylabel=time_unit, xlim=(0, most))
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    figure.legend(loc="outside upper left", ncols=2)
    note = say("sentence", text=runs_text(runs))
    texts = [say("described line", it=each) for each in lines]
    description = say("described lines", unit="runs", lines=texts, note=note)
    name = f"pays-{job.name}"
    return as_picture(figure, name, say("pays picture"), description, note)


@rc_context(SMALL_STYLE)
def which_gpu(job: JobRecord) -> Picture | None:
    """Draw the cost of each GPU that may be rented over its time, both with setup.

    Return None where no GPU pays, or where all take about as long.
    """
    decision = job.decision
    if decision.worth.gpu is None or (decision.is_here and not decision.worth.is_yes):
        return None
    found = [each for each in job.candidates if each.cost and not is_wide(each.time.interval)]
    found.sort(key=lambda each: (each.name != decision.gpu_name, each.value))
    found = found[:_MOST_GPUS]
    times = [each.with_start_seconds for each in found]
    if max(times, default=0.0) <= _LEAST_APART * min(times, default=0.0):
        return None
    costs = [each.cost or 0.0 for each in found]
    figure, axes = panel(SMALL, _HEIGHT)
    size, unit = _unit(max(times))
    for gpu, time, cost in zip(found, times, costs, strict=True):
        look = "full" if gpu.name == decision.gpu_name else "none"
        axes.plot(time / size, cost, "o", color=DEVICE_COLOURS["gpu"], fillstyle=look)
    currency = job.currency
    spread = max(max(times) - min(times), 0.2 * max(times)) / size
    right = max(times) / size + 0.6 * spread  # leaves room for names
    axes.set(xlabel=unit, ylabel=currency, xlim=(min(times) / size - 0.15 * spread, right))
    axes.set_ylim(0.7 * min(costs), 1.5 * max(costs))
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.xaxis.set_major_locator(MaxNLocator(4))
    names = list(map(_marked, found))
    figure.draw_without_rendering()  # lays the axes out, on which the names depend
    _name_dots(axes, [time / size for time in times], costs, names)
    prices = [each.terms.price for each in found if each.terms.price]
    dates = [each.as_of for each in prices if each.as_of]
    setup_seconds = max(each.terms.start_seconds for each in found)
    note = say("gpus note", setup=setup_seconds, oldest=min(dates, default=None)).strip()
    texts = [
        say("described gpu", name=name, time=time, cost=money(cost, currency))
        for name, time, cost in zip(names, times, costs, strict=True)
    ]
    description = say("described gpus", setup=setup_seconds, gpus=texts)
    return as_picture(figure, f"gpus-{job.name}", say("gpus picture"), description, note)


def _marked(gpu: Candidate) -> str:
    """Return the name with its marks, and a machine's GPUs."""
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
    runs = [run for run in job.runs if run.shares and run.step_share_seconds]
    if not runs:
        return None
    figure, axes = panel(SMALL, 0.6 + 0.85 * len(runs))
    names = dict.fromkeys(part for run in runs for part in run.shares)
    parts = {part: [run.shares.get(part, 0.0) for run in runs] for part in names}
    begin, devices, texts = [0.0] * len(runs), [], []
    for part, shares in parts.items():
        name = f"{SHORT_PARTS.get(part, part)} {' | '.join(f'{each:.0%}' for each in shares)}"
        axes.barh(range(len(runs)), shares, 0.4, begin, color=_PART_COLOURS[part], label=name)
        begin = [start + share for start, share in zip(begin, shares, strict=True)]
        texts.append(name)
    for y, run in enumerate(runs):
        devices.append(say("device step", device=run.device.upper(), step=run.step_share_seconds))
        axes.text(0, y - 0.26, devices[-1], va="bottom")
    axes.set(xlim=(0, 1), ylim=(len(runs) - 0.6, -0.75))
    axes.set_axis_off()
    figure.legend(loc="outside lower left", ncols=3 - len(runs))
    note = say("in graphs") if any(run.in_graphs for run in runs) else ""
    description = say("described step", devices=devices, parts=texts)
    return as_picture(figure, f"step-{job.name}", say("step picture"), description, note)


@rc_context(SMALL_STYLE)
def losses(job: JobRecord) -> Picture | None:
    """Draw the training loss by epoch on both devices, or on the CPU and in a GPU's record.

    Return None without both curves.
    """
    histories: list[tuple[str, DeviceLabel, Sequence[EpochMetrics]]]
    histories = [(run.device.upper(), run.device, run.history) for run in job.runs]
    if recorded := job.model.record:
        same = next(each for each in job.recorded if each.scores and each.gpu == recorded.gpu)
        histories.append((f"{recorded.gpu}*", "gpu", same.history))
    shortest = min(len(history) for _, _, history in histories)
    curves = []
    for label, device, history in histories:
        points = [(each.epoch, each.training_loss) for each in history[:shortest]]
        if finite := [each for each in points if math.isfinite(each[1])]:
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
    return next((each for each in units if most_seconds >= 2 * each[0]), units[-1])
