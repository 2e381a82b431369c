"""Findings as tables that a person reads: units, a sensible number of digits, a word where there is no figure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd

from photofinish.comparison.parity import THE_SAME, Layer
from photofinish.comparison.speedups import NAMES, Speedup
from photofinish.comparison.verdict import Verdict, in_words
from photofinish.wording import listed, ratio, seconds, utc_minute

_SHOWN = {
    "experiment": "experiment",
    "device": "device",
    "device_name": "hardware",
    "precision": "precision",
    "test_accuracy": "test accuracy",
    "test_loss": "test loss",
    "step_seconds": "step (median)",
    "epoch_seconds": "epoch (median)",
    "images_per_second": "images/s",
    "startup_seconds": "start-up",
    "total_seconds": "total",
    "overhead": "between epochs",
    "measured": "measured",
    "doubts": "to be taken with care",
}


def speedup_table(verdicts: list[Verdict]) -> pd.DataFrame:
    """Three rows for each experiment that a GPU trained."""
    rows = [
        {
            "experiment": each.experiment,
            "of": NAMES[speedup.kind],
            "CPU": seconds(speedup.cpu_seconds),
            "GPU": seconds(speedup.device_seconds),
            "speed-up": f"{ratio(speedup.ratio)}x",
            "95 % interval": _interval(speedup),
            "verdict": in_words(speedup),
        }
        for each in verdicts
        for speedup in each.speedups
    ]
    return pd.DataFrame(rows)


def speedup_figures(verdicts: list[Verdict]) -> pd.DataFrame:
    """The same for programs: a row for each speed-up, every digit."""
    columns = ["experiment", "of", "speedup", "low", "high", "cpu_seconds", "gpu_seconds", "verdict"]
    rows = [
        (each.experiment, speedup.kind, speedup.ratio, *(speedup.interval or (None, None)), speedup.cpu_seconds,
         speedup.device_seconds, in_words(speedup))
        for each in verdicts
        for speedup in each.speedups
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=columns).astype({"low": float, "high": float})


def why_table(verdicts: list[Verdict]) -> pd.DataFrame:
    """A row for each cause: of an epoch, and of the job where it is mostly start-up."""
    rows = [
        {
            "experiment": found.experiment,
            "device": found.device,
            "of": found.of,
            "cause": found.cause,
            "evidence": f"{found.sentence}; {found.evidence}",
            "remedy": f"{found.remedy.line} ({found.remedy.why})" if found.remedy else f"none: {found.no_remedy}",
            "predicted gain": found.remedy.prediction if found.remedy else "n/a",
        }
        for each in verdicts
        for found in each.diagnoses
    ]
    return pd.DataFrame(rows)


def parity_table(verdicts: list[Verdict]) -> pd.DataFrame:
    """What is the same in one row; then the rest, from the start of the training to its end."""
    rows = []
    for each in verdicts:
        layers = each.parity.layers if each.parity else ()
        plain = [layer.name for layer in layers if layer.finding == THE_SAME]
        found = [(layer.name, layer.finding, _likeness(layer)) for layer in layers if layer.finding != THE_SAME]
        if plain:
            found.insert(0, (listed(plain), "bit for bit", THE_SAME))
        rows += [{"experiment": each.experiment, "compared": a, "found": b, "verdict": c} for a, b, c in found]
    return pd.DataFrame(rows)


def shown_table(table: pd.DataFrame) -> pd.DataFrame:
    """All figures; of a device that was unavailable, that it was."""
    table = table.assign(
        measured=table.apply(_measured, axis="columns"), overhead=table.apply(_overhead, axis="columns")
    )
    shown = pd.DataFrame({column: table[column].map(_cell(_FORMATS.get(column, str))) for column in _SHOWN})
    unavailable = table["status"] == "unavailable"
    shown.loc[unavailable, "device_name"] = "unavailable"
    shown.loc[~unavailable & table["doubts"].isna(), "doubts"] = "nothing noticed"
    return shown.rename(columns=_SHOWN)


def _likeness(layer: Layer) -> str:
    return THE_SAME if layer.same else "within rounding" if layer.within_rounding else "different"


def _measured(row: pd.Series[Any]) -> str | None:
    """When, where, and whether in the run that made this report."""
    if pd.isna(row["measured_at_unix_seconds"]):
        return None
    run = f" ({row['measured_in']})" if pd.notna(row["measured_in"]) else ""
    return f"{utc_minute(row['measured_at_unix_seconds'])}, {row['host_name']}{run}"


def _overhead(row: pd.Series[Any]) -> str | None:
    if pd.isna(row["overhead_share"]):
        return None
    return f"{seconds(row['overhead_seconds'])} ({row['overhead_share']:.1%})"


def _interval(speedup: Speedup) -> str:
    return " to ".join(map(ratio, speedup.interval)) if speedup.interval else "n/a"


def _cell(write: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda value: "n/a" if pd.isna(value) else write(value)


_FORMATS: dict[str, Callable[[Any], str]] = {
    "test_accuracy": "{:.2%}".format,
    "test_loss": "{:.4f}".format,
    "step_seconds": seconds,
    "epoch_seconds": seconds,
    "images_per_second": "{:,.0f}".format,
    "startup_seconds": seconds,
    "total_seconds": seconds,
}
