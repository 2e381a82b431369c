"""What a step's time goes into, as bars."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import pandas as pd

from photofinish.report.drawing import PAPER, Drawing, Picture
from photofinish.wording import listed, seconds

_COLOURS = ("#0072b2", "#d55e00", "#007a5e", "#a05a8c", "#6b7280", "#8a6d00")
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
            left = 0.0
            shares = attribution[attribution["device"] == device].set_index("part")["share"]
            for part in parts:
                width = float(shares.get(part, 0.0))
                index = parts.index(part) % len(_COLOURS)
                label = part if y == 0 else None
                axes.barh(y, width, left=left, height=0.62, color=_COLOURS[index], edgecolor=PAPER, label=label,
                          hatch=_HATCHES[index], linewidth=1)  # fmt: skip
                if width >= _LEAST_LABELLED_SHARE:
                    axes.text(left + width / 2, y, f"{width:.0%}", color="#ffffff", ha="center", va="center",
                              fontweight="bold")  # fmt: skip
                left += width
        axes.set_yticks(range(len(devices)), [_label(device, attribution) for device in devices])
        axes.set_ylim(len(devices) - 0.5, -0.5)
        axes.set_xlim(0, 1)
        axes.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
        axes.set_xlabel("share of a step")
        axes.tick_params(axis="y", length=0)
        drawing.figure.legend(loc="outside lower center", ncols=2)
        told = listed([_told(row) for row in attribution.to_dict("records")])
        return drawing.picture(f"step-{experiment}", experiment, f"The parts of a step of {experiment}: {told}")


def _label(device: str, attribution: pd.DataFrame) -> str:
    whole = attribution.loc[attribution["device"] == device, "median_seconds"].sum()
    return f"{device.upper()}\n{seconds(float(whole))}"


def _told(row: dict[Hashable, Any]) -> str:
    return f"{row['device']} {row['part']} {seconds(row['median_seconds'])}"
