"""The report's pictures, drawn by matplotlib as SVG that sits in the page."""

from __future__ import annotations

import io
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

_INK = "#7a7f87"  # readable on white and on black
_COLOURS = {"cpu": "#2f7ed8", "gpu": "#e07b39"}


def learning_curves(history: pd.DataFrame) -> dict[str, str]:
    """Validation loss against epochs for each experiment, a line for each device."""
    experiments = history["run"].str.rsplit(" ", n=1).str[0]
    return {name: _learning_curve(part) for name, part in history.groupby(experiments, sort=False)}


def _learning_curve(history: pd.DataFrame) -> str:
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(3.6, 2.5), layout="constrained")
        axes = figure.add_subplot()
        for run, part in history.groupby("run", sort=False):
            device = str(run).rsplit(" ", 1)[1]
            colour = _COLOURS[device]
            axes.plot(part["epoch"], part["validation_loss"], marker="o", markersize=2.5, color=colour, label=device)
        axes.set_xlabel("epoch")
        axes.set_ylabel("validation loss")
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(frameon=False)
        return _svg(figure)


def _svg(figure: Figure) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]


_STYLE: Any = {
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 8,
    "legend.labelcolor": _INK,
    "svg.fonttype": "none",
    "svg.hashsalt": "photofinish",
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
}
