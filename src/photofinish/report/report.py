"""The comparison as a page to read, a table for a pull request, and files for pandas and `dvc plots`."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from photofinish.comparing.elsewhere import Elsewhere, elsewhere, elsewhere_figures
from photofinish.comparing.scaling import break_even_table, scaling_table
from photofinish.comparing.table import (
    DeviceResult,
    attribution_table,
    comparison_metrics,
    comparison_table,
    confusion_table,
    history_table,
)
from photofinish.comparing.verdict import Verdict, verdict
from photofinish.files import write_json_atomically, write_text_atomically
from photofinish.params.compare import Comparing
from photofinish.report.page import Gallery, Report, as_markdown, as_page
from photofinish.report.pictures import (
    break_even_pictures,
    confusion_pictures,
    learning_curves,
    speedup_pictures,
    step_pictures,
)
from photofinish.report.tables import (
    elsewhere_table,
    measured_table,
    parity_table,
    paying_table,
    shown_table,
    speedup_figures,
    speedup_table,
    why_table,
)
from photofinish.results.references import Reference

FIGURES, METRICS = "figures", "metrics"


def write_report(
    results: list[DeviceResult],
    folder: Path,
    run_began_at_unix_seconds: float | None = None,
    settings: Comparing | None = None,
    references: Iterable[Reference] = (),
) -> list[Verdict]:
    """Write every file of the report; return the verdicts, one for each experiment."""
    settings, others = settings or Comparing(), elsewhere(results, references)
    verdicts = _verdicts(results, others)
    files = {
        "comparison.csv": comparison_table(results, run_began_at_unix_seconds, settings),
        "history.csv": history_table(results),
        "confusion.csv": confusion_table(results),
        "speedups.csv": speedup_figures(verdicts),
        "attribution.csv": attribution_table(results),
        "scaling.csv": scaling_table(results),
        "elsewhere.csv": elsewhere_figures(others),
    }
    tables = {
        "Speed-ups": speedup_table(verdicts),
        "Why": why_table(verdicts),
        "Is it the same model?": parity_table(verdicts),
        "When does it pay?": paying_table(results, settings),
        "Recorded elsewhere": elsewhere_table(others, settings),
        "All figures": shown_table(files["comparison.csv"]),
    }
    report = Report(
        verdicts,
        [gallery for gallery in _galleries(files, break_even_table(results)) if gallery.pictures],
        confusion_pictures(files["confusion.csv"]),
        {title: table for title, table in tables.items() if len(table)},
        measured_table(results),
    )
    for name, content in files.items():
        write_text_atomically(folder / name, content.to_csv(index=False, lineterminator="\n"))
    write_text_atomically(folder / "comparison.md", as_markdown(report))
    write_text_atomically(folder / "index.html", as_page(report))
    _write_metrics(files["comparison.csv"], folder / METRICS)
    _write_figures(report, folder / FIGURES)
    return verdicts


def _verdicts(results: list[DeviceResult], others: Sequence[Elsewhere]) -> list[Verdict]:
    return [
        verdict(
            name,
            [result for result in results if result.experiment == name],
            [other for other in others if other.experiment == name],
        )
        for name in dict.fromkeys(result.experiment for result in results)
    ]


def _galleries(files: dict[str, pd.DataFrame], break_evens: pd.DataFrame) -> list[Gallery]:
    return [
        Gallery(
            "How much faster is the GPU?",
            "Right of 1 the GPU is faster. A line is the 95 % interval; a dot without one is open.",
            "speedups.csv",
            speedup_pictures(files["speedups.csv"]),
        ),
        Gallery(
            "Where a step's time goes",
            "Each part of a step, the clock waiting for the device after it, as a share of the whole.",
            "attribution.csv",
            step_pictures(files["attribution.csv"]),
        ),
        Gallery(
            "Where the GPU begins to pay",
            "The speed-up of an epoch, with its 95 % interval; above 1 the GPU is faster.",
            "scaling.csv",
            break_even_pictures(files["scaling.csv"], break_evens),
        ),
        Gallery(
            "How they learned",
            "Validation loss: where devices' curves agree against epochs they learn alike; further left is sooner.",
            "history.csv",
            learning_curves(files["history.csv"]),
        ),
    ]


def _write_metrics(comparison: pd.DataFrame, folder: Path) -> None:
    """A file for each experiment, of which DVC makes a row; none is left of a former report."""
    shutil.rmtree(folder, ignore_errors=True)
    for experiment, metrics in comparison_metrics(comparison).items():
        write_json_atomically(folder / f"{experiment}.json", metrics)


def _write_figures(report: Report, folder: Path) -> None:
    """Each picture as a file of its own, which MLflow and documents can show; none is left of a former report."""
    shutil.rmtree(folder, ignore_errors=True)
    for picture in report.pictures:
        write_text_atomically(folder / f"{picture.name}.svg", picture.file)
