"""Which classes are taken for which, a matrix for each device, side by side."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgb

from photofinish.report.drawing import INK, WIDTH_INCHES, Drawing, Picture

_Counts = npt.NDArray[np.int_]
_MOST_NUMBERED, _MOST_NAMED = 12, 25
"""classes: with more, figures or names would lie upon each other"""
_STRONG_SHARE = 0.55
"""of a row: from here on, the cell is dark whatever the page's colour"""
_BLUE = to_rgb("#0063a0")
_FROM_NOTHING = LinearSegmentedColormap.from_list("from nothing", [(*_BLUE, 0.0), (*_BLUE, 1.0)])
"""a cell without images shows the page, be it light or dark"""


def confusion_pictures(confusion: pd.DataFrame) -> dict[str, list[Picture]]:
    """Of each experiment, one for each device."""
    return {
        str(experiment): [_picture(str(experiment), str(device), part) for device, part in each.groupby("device")]
        for experiment, each in confusion.groupby("experiment", sort=False)
    }


def _picture(experiment: str, device: str, confusion: pd.DataFrame) -> Picture:
    names = list(dict.fromkeys(map(str, confusion["actual"])))
    matrix = confusion["images"].to_numpy(int).reshape(len(names), len(names))
    with Drawing(height_inches=WIDTH_INCHES) as drawing:
        _matrix(drawing.figure.add_subplot(), matrix, names)
        told = f"Confusion matrix of {experiment}, {device.upper()}: {_told(matrix, names)}"
        return drawing.picture(f"confusion-{experiment}-{device}", device.upper(), told)


def _matrix(axes: Axes, matrix: _Counts, names: list[str]) -> None:
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    axes.imshow(shares, cmap=_FROM_NOTHING, vmin=0, vmax=1, interpolation="none")
    axes.set_xlabel("predicted")
    axes.set_ylabel("actual")
    for spine in axes.spines.values():
        spine.set_visible(True)
    ticks = range(len(names)) if len(names) <= _MOST_NAMED else []
    axes.set_xticks(ticks, [_short(names[tick]) for tick in ticks], rotation=90 if max(map(len, names)) > 2 else 0)
    axes.set_yticks(ticks, [_short(names[tick]) for tick in ticks])
    axes.tick_params(length=0)
    if len(names) <= _MOST_NUMBERED:
        for (row, column), count in np.ndenumerate(matrix):
            if count:
                colour = "#ffffff" if shares[row, column] >= _STRONG_SHARE else INK
                axes.text(column, row, str(count), ha="center", va="center", color=colour, fontsize=6.5)


def _told(matrix: _Counts, names: list[str]) -> str:
    right, wrong = int(np.trace(matrix)), matrix - np.diag(np.diag(matrix))
    told = f"{right:,} of {matrix.sum():,} images right"
    if wrong.any():
        row, column = np.unravel_index(wrong.argmax(), wrong.shape)
        told += f"; the commonest mistake: {names[row]} taken for {names[column]} ({wrong[row, column]:,})"
    return told


def _short(name: str) -> str:
    return name if len(name) <= 12 else f"{name[:11]}\N{HORIZONTAL ELLIPSIS}"
