"""The comparison as a page to read, a table for a pull request, and files for pandas and `dvc plots`."""

from __future__ import annotations

from pathlib import Path

import jinja2
import pandas as pd

from photofinish.comparison import (
    DeviceResult,
    comparison_metrics,
    comparison_table,
    confusion_table,
    history_table,
)
from photofinish.files import write_json_atomically, write_text_atomically
from photofinish.figures import learning_curves
from photofinish.verdict import Verdict, verdict

_SHOWN = {
    "experiment": "experiment",
    "device": "device",
    "device_name": "hardware",
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
    shown = pd.DataFrame({column: table[column].map(_FORMATS.get(column, _text)) for column in _SHOWN})
    unavailable = table["status"] == "unavailable"
    shown.loc[unavailable, "device_name"] = "unavailable"
    return shown.rename(columns=_SHOWN)


def seconds(value: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if value * scale >= 1:
            return f"{value * scale:.3g} {unit}"
    return f"{value:.3g} s"


def _markdown(verdicts: list[Verdict], shown: pd.DataFrame) -> str:
    lines = ["# photofinish", ""]
    lines += [f"* **{each.experiment}**: {each.sentence}" for each in verdicts]
    lines += ["", "| " + " | ".join(shown.columns) + " |", "|" + " --- |" * len(shown.columns)]
    lines += ["| " + " | ".join(row) + " |" for row in shown.to_numpy().tolist()]
    return "\n".join(lines) + "\n"


def _html(verdicts: list[Verdict], shown: pd.DataFrame, figure: str) -> str:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("photofinish"), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    return environment.get_template("report.html.j2").render(
        verdicts=verdicts, columns=list(shown.columns), rows=shown.to_numpy().tolist(), figure=figure
    )


def _text(value: object) -> str:
    return "–" if pd.isna(value) else str(value)  # type: ignore[call-overload]  # a cell is a scalar


def _formatted(text: str) -> object:
    return lambda value: "–" if pd.isna(value) else text.format(value)


_FORMATS = {
    "test_accuracy": _formatted("{:.2%}"),
    "test_loss": _formatted("{:.4f}"),
    "epoch_seconds": lambda value: "–" if pd.isna(value) else seconds(value),
    "images_per_second": _formatted("{:,.0f}"),
    "startup_seconds": lambda value: "–" if pd.isna(value) else seconds(value),
    "total_seconds": lambda value: "–" if pd.isna(value) else seconds(value),
    "epoch_speedup": _formatted("{:.2f}x"),
    "end_to_end_speedup": _formatted("{:.2f}x"),
}
