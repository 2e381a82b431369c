"""The comparison as a page to read, a table for a pull request, and files for pandas and `dvc plots`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from photofinish.comparison import (
    DeviceResult,
    comparison_metrics,
    comparison_table,
    confusion_table,
    history_table,
)
from photofinish.figures import learning_curves
from photofinish.files import write_json_atomically, write_text_atomically
from photofinish.verdict import Verdict, verdict
from photofinish.wording import seconds

_SHOWN = {
    "experiment": "experiment",
    "device": "device",
    "device_name": "hardware",
    "precision": "precision",
    "test_accuracy": "test accuracy",
    "test_loss": "test loss",
    "epoch_seconds": "epoch (median)",
    "images_per_second": "images/s",
    "startup_seconds": "start-up",
    "total_seconds": "total",
    "epoch_speedup": "epoch speed-up",
    "end_to_end_speedup": "end-to-end speed-up",
}


def write_report(results: list[DeviceResult], folder: Path) -> list[Verdict]:
    """Write every file of the report; return the verdicts, one for each experiment."""
    table, history = comparison_table(results), history_table(results)
    names = dict.fromkeys(result.experiment for result in results)
    verdicts = [verdict(name, [result for result in results if result.experiment == name]) for name in names]
    shown = shown_table(table)
    write_text_atomically(folder / "comparison.csv", table.to_csv(index=False, lineterminator="\n"))
    write_text_atomically(folder / "comparison.md", _markdown(verdicts, shown))
    write_text_atomically(folder / "index.html", _html(verdicts, shown, learning_curves(history)))
    write_text_atomically(folder / "history.csv", history.to_csv(index=False, lineterminator="\n"))
    write_text_atomically(folder / "confusion.csv", confusion_table(results).to_csv(index=False, lineterminator="\n"))
    write_json_atomically(folder / "metrics.json", comparison_metrics(table))
    return verdicts


def shown_table(table: pd.DataFrame) -> pd.DataFrame:
    """As a person reads it: units, a sensible number of digits, and a word where there is no figure."""
    shown = pd.DataFrame({column: table[column].map(_cell(_FORMATS.get(column, str))) for column in _SHOWN})
    unavailable = table["status"] == "unavailable"
    shown.loc[unavailable, "device_name"] = "unavailable"
    return shown.rename(columns=_SHOWN)


def _markdown(verdicts: list[Verdict], shown: pd.DataFrame) -> str:
    lines = ["# photofinish", ""]
    lines += [f"* **{each.experiment}**: {each.sentence}" for each in verdicts]
    lines += [f"\nWhy no GPU: {reason}" for reason in _reasons(verdicts)]
    lines += ["", "| " + " | ".join(shown.columns) + " |", "|" + " --- |" * len(shown.columns)]
    lines += ["| " + " | ".join(row) + " |" for row in shown.to_numpy().tolist()]
    return "\n".join(lines) + "\n"


def _reasons(verdicts: list[Verdict]) -> list[str]:
    """Why devices were missing, each reason once."""
    return list(dict.fromkeys(each.missing for each in verdicts if each.missing))


def _html(verdicts: list[Verdict], shown: pd.DataFrame, figures: dict[str, str]) -> str:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("photofinish"), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    return environment.get_template("report.html.j2").render(
        verdicts=verdicts,
        reasons=_reasons(verdicts),
        columns=list(shown.columns),
        rows=shown.to_numpy().tolist(),
        figures=figures,
    )


def _cell(write: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda value: "n/a" if pd.isna(value) else write(value)


_FORMATS: dict[str, Callable[[Any], str]] = {
    "test_accuracy": "{:.2%}".format,
    "test_loss": "{:.4f}".format,
    "epoch_seconds": seconds,
    "images_per_second": "{:,.0f}".format,
    "startup_seconds": seconds,
    "total_seconds": seconds,
    "epoch_speedup": "{:.2f}x".format,
    "end_to_end_speedup": "{:.2f}x".format,
}
