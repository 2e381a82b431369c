"""The comparison as a page to read, a table for a pull request, and files for pandas and `dvc plots`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from photofinish.comparison.parity import THE_SAME, Layer
from photofinish.comparison.references import elsewhere, elsewhere_figures
from photofinish.comparison.speedups import NAMES, Speedup
from photofinish.comparison.table import (
    DeviceResult,
    comparison_metrics,
    comparison_table,
    confusion_table,
    history_table,
)
from photofinish.comparison.verdict import Verdict, in_words, verdict
from photofinish.files import write_json_atomically, write_text_atomically
from photofinish.params.comparing import Comparing
from photofinish.report.figures import learning_curves
from photofinish.report.paying_tables import elsewhere_table, paying_table
from photofinish.results.references import Reference
from photofinish.wording import listed, markdown_cell, seconds, utc_minute

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
_TITLES = {
    "speed-up": "How much faster",
    "why": "Why",
    "parity": "Is it the same model?",
    "paying": "When does it pay?",
    "elsewhere": "Recorded elsewhere",
    "figures": "All figures",
}


def write_report(
    results: list[DeviceResult],
    folder: Path,
    run_began_at_unix_seconds: float | None = None,
    settings: Comparing | None = None,
    references: Iterable[Reference] = (),
) -> list[Verdict]:
    """Write every file of the report; return the verdicts, one for each experiment."""
    settings, others = settings or Comparing(), elsewhere(results, references)
    table, history = comparison_table(results, run_began_at_unix_seconds, settings), history_table(results)
    names = dict.fromkeys(result.experiment for result in results)
    verdicts = [
        verdict(
            name,
            [result for result in results if result.experiment == name],
            [other for other in others if other.experiment == name],
        )
        for name in names
    ]
    tables = {
        _TITLES["speed-up"]: speedup_table(verdicts),
        _TITLES["why"]: why_table(verdicts),
        _TITLES["parity"]: parity_table(verdicts),
        _TITLES["paying"]: paying_table(results, settings),
        _TITLES["elsewhere"]: elsewhere_table(others, settings),
        _TITLES["figures"]: shown_table(table),
    }
    tables = {title: shown for title, shown in tables.items() if len(shown)}
    write_text_atomically(folder / "comparison.csv", table.to_csv(index=False, lineterminator="\n"))
    write_text_atomically(folder / "comparison.md", _markdown(verdicts, tables))
    write_text_atomically(folder / "index.html", _html(verdicts, tables, learning_curves(history)))
    write_text_atomically(folder / "history.csv", history.to_csv(index=False, lineterminator="\n"))
    write_text_atomically(folder / "confusion.csv", confusion_table(results).to_csv(index=False, lineterminator="\n"))
    figures_elsewhere = elsewhere_figures(others).to_csv(index=False, lineterminator="\n")
    write_text_atomically(folder / "elsewhere.csv", figures_elsewhere)
    write_json_atomically(folder / "metrics.json", comparison_metrics(table))
    return verdicts


def speedup_table(verdicts: list[Verdict]) -> pd.DataFrame:
    """Three rows for each experiment that a GPU trained."""
    rows = [
        {
            "experiment": each.experiment,
            "of": NAMES[speedup.kind],
            "CPU": seconds(speedup.cpu_seconds),
            "GPU": seconds(speedup.device_seconds),
            "speed-up": f"{speedup.ratio:.2f}x",
            "95 % interval": _interval(speedup),
            "verdict": in_words(speedup),
        }
        for each in verdicts
        for speedup in each.speedups
    ]
    return pd.DataFrame(rows)


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


def _likeness(layer: Layer) -> str:
    return THE_SAME if layer.same else "within rounding" if layer.within_rounding else "different"


def shown_table(table: pd.DataFrame) -> pd.DataFrame:
    """As a person reads it: units, a sensible number of digits, and a word where there is no figure."""
    table = table.assign(
        measured=table.apply(_measured, axis="columns"), overhead=table.apply(_overhead, axis="columns")
    )
    shown = pd.DataFrame({column: table[column].map(_cell(_FORMATS.get(column, str))) for column in _SHOWN})
    unavailable = table["status"] == "unavailable"
    shown.loc[unavailable, "device_name"] = "unavailable"
    shown.loc[~unavailable & table["doubts"].isna(), "doubts"] = "nothing noticed"
    return shown.rename(columns=_SHOWN)


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
    return f"{speedup.interval[0]:.2f} to {speedup.interval[1]:.2f}" if speedup.interval else "n/a"


def _markdown(verdicts: list[Verdict], tables: dict[str, pd.DataFrame]) -> str:
    lines = ["# photofinish", ""]
    lines += [f"* **{each.experiment}**: {each.sentence}" for each in verdicts]
    lines += [f"\nWhy no GPU: {reason}" for reason in _reasons(verdicts)]
    for title, table in tables.items():
        lines += ["", f"## {title}", ""]
        lines += ["| " + " | ".join(table.columns) + " |", "|" + " --- |" * len(table.columns)]
        lines += ["| " + " | ".join(map(markdown_cell, row)) + " |" for row in table.to_numpy().tolist()]
    return "\n".join(lines) + "\n"


def _reasons(verdicts: list[Verdict]) -> list[str]:
    """Why devices were missing, each reason once."""
    return list(dict.fromkeys(each.missing for each in verdicts if each.missing))


def _html(verdicts: list[Verdict], tables: dict[str, pd.DataFrame], figures: dict[str, str]) -> str:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("photofinish.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    return environment.get_template("report.html.j2").render(
        verdicts=verdicts,
        reasons=_reasons(verdicts),
        tables=tables,
        figures=figures,
    )


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
