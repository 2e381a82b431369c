"""Loss against epochs, which shows whether it is the same model, and against seconds, which shows who gets there."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from photofinish.report.drawing import DEVICE_COLOURS, DEVICE_LINES, DEVICE_MARKERS, Drawing, Picture, logarithmic
from photofinish.wording import listed, seconds

_AGAINST = {"epoch": "epoch", "training_seconds_so_far": "seconds of training"}
_MOST_MARKED_EPOCHS = 30


def learning_curves(history: pd.DataFrame) -> list[Picture]:
    """One for each experiment, with a line for each device."""
    return [_curve(str(name), part) for name, part in history.groupby("experiment", sort=False)]


def _curve(experiment: str, history: pd.DataFrame) -> Picture:
    devices = {str(device): part for device, part in history.groupby("device", sort=False)}
    with Drawing(height_inches=3.6) as drawing:
        upper, lower = drawing.figure.subplots(2, 1, sharey=True)
        for axes, (column, label) in zip((upper, lower), _AGAINST.items(), strict=True):
            for device, part in devices.items():
                _line(axes, device, part, column)
            axes.set_xlabel(label)
            axes.set_ylabel("validation loss")
            axes.grid(axis="y")
        upper.set_ylim(bottom=0)
        upper.xaxis.set_major_locator(MaxNLocator(integer=True))
        if len(devices) > 1:  # who takes ten times as long would squeeze the other's line against the edge
            logarithmic(lower.xaxis)
        upper.legend(loc="upper right")
        told = listed([_told(device, part) for device, part in devices.items()])
        return drawing.picture(f"loss-{experiment}", experiment, f"Validation loss of {experiment}: {told}")


def _line(axes: Axes, device: str, part: pd.DataFrame, column: str) -> None:
    axes.plot(
        part[column],
        part["validation_loss"],
        color=DEVICE_COLOURS[device],
        linestyle=DEVICE_LINES[device],
        marker=DEVICE_MARKERS[device] if len(part) <= _MOST_MARKED_EPOCHS else None,
        markersize=3,
        label=device.upper(),
    )


def _told(device: str, part: pd.DataFrame) -> str:
    first, last = part.iloc[0], part.iloc[-1]
    return (
        f"on the {device.upper()} from {first['validation_loss']:.3g} to {last['validation_loss']:.3g} "
        f"in {len(part)} epochs and {seconds(last['training_seconds_so_far'])} of training"
    )
