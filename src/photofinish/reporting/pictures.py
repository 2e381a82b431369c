"""Pictures of the report: times of jobs and loaders, speed-ups over settings, learning curves."""

from __future__ import annotations

import math
from dataclasses import dataclass

from matplotlib import rc_context
from matplotlib.patches import Rectangle

from photofinish.answer.candidates import short_name
from photofinish.answer.comparison import Comparison
from photofinish.answer.decision import Decision
from photofinish.answer.scaling import Grid
from photofinish.reporting.comparison_rows import Rows
from photofinish.reporting.drawing import (
    DEVICE_COLOURS,
    INK,
    LINES,
    MARKERS,
    STYLE,
    Picture,
    as_picture,
    panels,
    time_axis,
)
from photofinish.reporting.extrapolated import timed_text
from photofinish.reporting.templates import say
from photofinish.results.job_times import JobTimes
from photofinish.wording import HIGH, limit, listed, seconds, times

PART_COLOURS = {
    "start-up": "#8a929b",
    "loading": "#c9930a",
    "training": "#2a8f83",
    "validation": "#7b68ae",
    "the rest": "#c9ced4",
}
_LOADING_COLOURS = [PART_COLOURS[part] for part in ("loading", "training", "validation")]
_LOADING_COLOURS += [PART_COLOURS["start-up"], PART_COLOURS["the rest"]]
_MOST_MARKED_EPOCHS = 30
_LONGEST_NAME = 60


@rc_context(STYLE)
def job_times(pair: Comparison, decision: Decision) -> Picture:
    """Draw the job's time as a bar for each device, solid if measured and hatched if estimated."""
    bars = _bars(pair, decision)
    figure, (axes,) = panels(0.85 + 0.46 * len(bars))
    figure.subplots_adjust(left=0.03)
    descriptions = []
    for y, bar in enumerate(bars):
        start_seconds = 0.0
        for part, part_seconds in bar.parts.items():
            axes.barh(
                y,
                part_seconds,
                left=start_seconds,
                height=0.4,
                color=PART_COLOURS[part],
                alpha=0.55 if bar.is_estimated else 1.0,
                hatch="////" if bar.is_estimated else None,
                edgecolor=INK if bar.is_estimated else PART_COLOURS[part],
                linewidth=0.0,
                label=part,
            )
            start_seconds += part_seconds
        text = f"{bar.label[:_LONGEST_NAME]}: {seconds(sum(bar.parts.values()))}"
        axes.text(0, y - 0.26, text, transform=axes.get_yaxis_transform())
        parts = listed([f"{part} {seconds(value)}" for part, value in bar.parts.items()])
        descriptions.append(f"{bar.label}: {parts}")
    limit_seconds = pair.bounds.job.measured_seconds
    if not pair.compared:
        axes.axvline(limit_seconds, color=INK, linewidth=1, linestyle=":")
        descriptions.append(say("infinitely fast", limit=limit_seconds))
    axes.set_ylim(len(bars) - 0.6, -0.7)
    time_axis(axes)
    handles, labels = axes.get_legend_handles_labels()
    shown = {label: handle for handle, label in zip(handles, labels, strict=True)}
    figure.legend(
        shown.values(), shown.keys(), loc="lower left", ncols=5, fontsize=8, borderaxespad=0.1,
        handlelength=1, columnspacing=1,
    )  # fmt: skip
    caption = say("job picture of both" if pair.compared else "job picture")
    description = say("described job", parts="; ".join(descriptions))
    return as_picture(figure, f"job-{pair.experiment}", caption, description)


@rc_context(STYLE)
def loading(experiment: str, parts: dict[str, float]) -> Picture:
    """Draw the parts of loading a batch as one bar."""
    figure, (axes,) = panels(1.3)
    figure.subplots_adjust(left=0.03, bottom=0.58)
    start_seconds = 0.0
    for (part, part_seconds), colour in zip(parts.items(), _LOADING_COLOURS, strict=False):
        axes.barh(0, part_seconds, left=start_seconds, height=0.4, color=colour, label=part)
        start_seconds += part_seconds
    time_axis(axes)
    figure.legend(
        loc="lower left", ncols=3, fontsize=8, borderaxespad=0.1, handlelength=1, columnspacing=1
    )
    named = [f"{part} {seconds(value)}" for part, value in parts.items()]
    description = say("described loading", parts=named)
    return as_picture(figure, f"loading-{experiment}", say("loading picture"), description)


@dataclass(frozen=True)
class _Bar:
    label: str
    parts: dict[str, float]
    is_estimated: bool = False


def _bars(pair: Comparison, decision: Decision) -> list[_Bar]:
    """Return a bar for each device that trained here and each GPU in the answer."""
    bars = []
    for run in pair.trained:
        timings, how = run.timings, "measured"
        if timings.untimed_epochs:
            how = say("extrapolated bar", timed=timed_text(timings))
        label, parts = f"{run.device.upper()} here, {how}", _parts(timings, run.loading_share)
        bars.append(_Bar(label, parts, is_estimated=bool(timings.untimed_epochs)))
    named = [decision.gpu_name]
    for each in pair.references:
        if short_name(each.hardware) in named and decision.basis == "recorded":
            bars.append(_Bar(f"{each.hardware}, recorded", _parts(each.timings, 0.0)))
    for option in pair.renting.options:
        estimate, name = option.estimate, option.accelerator.name
        if estimate and name in named and decision.basis == "estimated":
            computing_seconds = estimate.job_seconds - estimate.startup_seconds
            parts = {"start-up": estimate.startup_seconds, "training": computing_seconds}
            bars.append(_Bar(f"{name}, estimated", parts, is_estimated=True))
    return bars


def _parts(timings: JobTimes, loading_share: float) -> dict[str, float]:
    """Return the parts of a whole job, from its measured epochs."""
    training_seconds = timings.passes_seconds / (1 + timings.validation_share)
    loading_seconds = training_seconds * loading_share
    parts = {
        "start-up": timings.startup_seconds,
        "loading": loading_seconds,
        "training": training_seconds - loading_seconds,
        "validation": timings.validation_share * training_seconds,
    }
    parts["the rest"] = max(0.0, timings.whole_seconds - sum(parts.values()))
    return {part: value for part, value in parts.items() if value}


@rc_context(STYLE)
def heat_map(grid: Grid) -> Picture:
    """Draw a GPU's speed-up, or its bound, over two settings."""
    columns, rows = len(grid.columns), len(grid.rows)
    figure, (axes,) = panels(1.0 + 0.45 * rows)
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


@rc_context(STYLE)
def learning_curves(history: Rows) -> Picture:
    """Draw an experiment's validation loss by epoch, and for two devices also by time.

    Without a validation part, draw the training loss.
    """
    has_validation = history[0]["validation_loss"] is not None
    key = "validation_loss" if has_validation else "training_loss"
    name = key.replace("_", " ")
    by_device: dict[str, Rows] = {}
    for epoch in history:
        by_device.setdefault(epoch["device"], []).append(epoch)
    columns = {"epoch": "epoch"}
    if len(by_device) > 1:
        columns["training_seconds_so_far"] = "seconds of training"
    figure, all_axes = panels(2.2 * len(columns), len(columns))
    for axes, (column, label) in zip(all_axes, columns.items(), strict=True):
        for device, rows in by_device.items():
            shown = [row for row in rows if math.isfinite(row[key])]
            axes.plot(
                [row[column] for row in shown],
                [row[key] for row in shown],
                LINES[device],
                color=DEVICE_COLOURS[device],
                marker=MARKERS[device] if len(shown) <= _MOST_MARKED_EPOCHS else "",
                label=device.upper(),
            )
        axes.set(xlabel=label, ylabel=name)
        axes.set_xlim(left=0)
    lines, labels = all_axes[0].get_legend_handles_labels()
    figure.legend(lines, labels, loc="upper left", ncols=2, fontsize=8, borderaxespad=0.2)
    descriptions = []
    for device, rows in by_device.items():
        first, last = rows[0][key], rows[-1][key]
        values = {"epochs": len(rows), "trained": rows[-1]["training_seconds_so_far"]}
        curve = say("described curve", device=device.upper(), first=first, last=last, **values)
        descriptions.append(curve)
    experiment = history[0]["experiment"]
    description = f"{name.capitalize()} of {experiment}: {listed(descriptions)}"
    return as_picture(figure, f"loss-{experiment}", say("curves"), description)
