"""The comparison's files: to read, for a pull request, for pandas, for `dvc plots` and `dvc metrics`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd

from photofinish.comparison.table import (
    DeviceResult,
    comparison_metrics,
    comparison_table,
    confusion_table,
    history_table,
)
from photofinish.comparison.verdict import Verdict, verdict
from photofinish.files import write_json_atomically, write_text_atomically
from photofinish.report.confusion import confusion_pictures
from photofinish.report.curves import learning_curves
from photofinish.report.measured import measured_table
from photofinish.report.pages import Gallery, Report, as_markdown, as_page
from photofinish.report.ratios import speedup_pictures
from photofinish.report.tables import parity_table, shown_table, speedup_figures, speedup_table

FIGURES = "figures"


def write_report(
    results: list[DeviceResult], folder: Path, run_began_at_unix_seconds: float | None = None
) -> list[Verdict]:
    """Write every file of the report; return the verdicts, one for each experiment."""
    table = comparison_table(results, run_began_at_unix_seconds)
    names = dict.fromkeys(result.experiment for result in results)
    verdicts = [verdict(name, [result for result in results if result.experiment == name]) for name in names]
    files = {
        "comparison.csv": table,
        "history.csv": history_table(results),
        "confusion.csv": confusion_table(results),
        "speedups.csv": speedup_figures(verdicts),
    }
    report = _report(results, verdicts, files)
    for name, content in files.items():
        write_text_atomically(folder / name, content.to_csv(index=False, lineterminator="\n"))
    write_text_atomically(folder / "comparison.md", as_markdown(report))
    write_text_atomically(folder / "index.html", as_page(report))
    write_json_atomically(folder / "metrics.json", comparison_metrics(table))
    _write_figures(report, folder / FIGURES)
    return verdicts


def _report(results: list[DeviceResult], verdicts: list[Verdict], files: dict[str, pd.DataFrame]) -> Report:
    galleries = [
        Gallery(
            "How much faster is the GPU?",
            "Right of 1 the GPU is faster. A line is the 95 % interval; a dot without one is open.",
            "speedups.csv",
            speedup_pictures(files["speedups.csv"]),
        ),
        Gallery(
            "How they learned",
            "Validation loss: where devices' curves agree against epochs they learn alike; further left is sooner.",
            "history.csv",
            learning_curves(files["history.csv"]),
        ),
    ]
    tables = {
        "Speed-ups": speedup_table(verdicts),
        "Is it the same model?": parity_table(verdicts),
        "All figures": shown_table(files["comparison.csv"]),
    }
    return Report(
        verdicts,
        [gallery for gallery in galleries if gallery.pictures],
        confusion_pictures(files["confusion.csv"]),
        {title: shown for title, shown in tables.items() if len(shown)},
        measured_table(results),
    )


def _write_figures(report: Report, folder: Path) -> None:
    """Each picture as a file of its own, which MLflow and documents can show; none is left of a former report."""
    shutil.rmtree(folder, ignore_errors=True)
    for picture in report.pictures:
        write_text_atomically(folder / f"{picture.name}.svg", picture.file)
