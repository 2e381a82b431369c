"""What a step's time goes into, as bars."""

from __future__ import annotations

from collections.abc import Hashable
from itertools import cycle
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from photofinish.report.drawing import PAPER, Drawing, Picture
from photofinish.wording import listed, seconds

_COLOURS = ("#0068a4", "#b94c00", "#007a5e", "#a05a8c", "#6b7280", "#8a6d00")
"""each dark enough for white text, light enough for a dark page"""
_HATCHES = ("", "///", "", "\\\\\\", "", "...")
_LEAST_LABELLED_SHARE = 0.14


def step_pictures(attribution: pd.DataFrame) -> list[Picture]:
    """One for each experiment: a bar for each device, cut into the parts of its step."""
    parts = list(dict.fromkeys(attribution["part"]))
    return [_bars(str(name), part, parts) for name, part in attribution.groupby("experiment", sort=False)]


def _bars(experiment: str, attribution: pd.DataFrame, parts: list[str]) -> Picture:
    devices = list(dict.fromkeys(attribution["device"]))
    with Drawing(height_inches=0.9 + 0.45 * len(devices) + 0.18 * ((len(parts) + 1) // 2)) as drawing:
        axes = drawing.figure.add_subplot()
        for y, device in enumerate(devices):
            shares = attribution[attribution["device"] == device].set_index("part")["share"]
            _bar(axes, y, {part: float(shares.get(part, 0.0)) for part in parts})
        axes.set_yticks(range(len(devices)), [_label(device, attribution) for device in devices])
        axes.set_ylim(len(devices) - 0.5, -0.5)
        axes.set_xlim(0, 1)
        axes.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
        axes.set_xlabel("share of a step")
        axes.tick_params(axis="y", length=0)
        drawing.figure.legend(loc="outside lower center", ncols=2)
        told = listed([_told(row) for row in attribution.to_dict("records")])
        return drawing.picture(f"step-{experiment}", experiment, f"The parts of a step of {experiment}: {told}")


def _bar(axes: Axes, y: int, shares: dict[str, float]) -> None:
    left = 0.0
    for (part, share), colour, hatch in zip(shares.items(), cycle(_COLOURS), cycle(_HATCHES), strict=False):
        label = part if y == 0 else None  # once in the legend
        axes.barh(y, share, left=left, height=0.62, color=colour, edgecolor=PAPER, hatch=hatch, label=label)
        if share >= _LEAST_LABELLED_SHARE:
            place, box = left + share / 2, {"color": colour, "pad": 1.0, "linewidth": 0}
            axes.text(place, y, f"{share:.0%}", color="white", weight="bold", ha="center", va="center", bbox=box)
        left += share


def _label(device: str, attribution: pd.DataFrame) -> str:
    whole = attribution.loc[attribution["device"] == device, "median_seconds"].sum()
    return f"{device.upper()}\n{seconds(float(whole))}"


def _told(row: dict[Hashable, Any]) -> str:
    return f"{row['device']} {row['part']} {seconds(row['median_seconds'])}"
