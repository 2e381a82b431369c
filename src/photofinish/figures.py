"""The report's pictures, drawn by matplotlib as SVG that sits in the page."""

from __future__ import annotations

import io
import math
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

_COLUMNS = 3
_INK = "#7a7f87"  # readable on white and on black
_COLOURS = {"cpu": "#2f7ed8", "gpu": "#e07b39"}


def learning_curves(history: pd.DataFrame) -> str:
    """Validation loss against epochs, a panel for each experiment, a line for each device."""
    experiments = history["run"].str.rsplit(" ", n=1).str[0]
    names = list(dict.fromkeys(experiments))
    columns = min(_COLUMNS, len(names))
    rows = math.ceil(len(names) / columns)
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(3.4 * columns, 2.5 * rows), layout="constrained")
        for index, name in enumerate(names):
            axes = figure.add_subplot(rows, columns, index + 1)
            for run, part in history[experiments == name].groupby("run", sort=False):
                device = str(run).rsplit(" ", 1)[1]
                axes.plot(
                    part["epoch"],
                    part["validation_loss"],
                    marker="o",
                    markersize=2.5,
                    color=_COLOURS[device],
                    label=device,
                )
            axes.set_title(name, fontsize=10)
            axes.set_xlabel("epoch")
            axes.set_ylabel("validation loss")
            axes.set_ylim(bottom=0)
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
