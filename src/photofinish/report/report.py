"""The comparison as a page that stands alone, as Markdown for a pull request, and as files for pandas and DVC."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import jinja2
import pandas as pd
from markupsafe import Markup, escape

from photofinish.comparing.pairs import Pair
from photofinish.comparing.scaling import all_series
from photofinish.comparing.verdict import Verdict, verdict
from photofinish.files import write_json_atomically, write_text_atomically
from photofinish.report import frames, pictures, tables
from photofinish.report.pictures import Picture
from photofinish.wording import markdown_cell

FIGURES, METRICS = "figures", "metrics"
_NUMBER = re.compile(r"-?[\d,]*\.?\d+( ?(µs|ms|s|%|x))?( \([\d.]+%\))?")
_CODE = re.compile(r"`([^`]+)`")


@dataclass(frozen=True)
class Gallery:
    """Pictures of one kind, below one heading."""

    title: str
    note: str
    """how to read them"""
    file: str
    """which of the report's files holds what is drawn"""
    pictures: list[Picture]


@dataclass(frozen=True)
class Report:
    """All that the page and the Markdown tell, in its order; what would be empty is left out."""

    verdicts: list[Verdict]
    galleries: list[Gallery]
    matrices: dict[str, list[Picture]]
    """by experiment, a picture for each device; folded away where there are many"""
    tables: dict[str, pd.DataFrame]
    """by title, all cells text"""
    measured: pd.DataFrame

    @property
    def reasons(self) -> list[str]:
        """Why devices were missing, each reason once."""
        return list(dict.fromkeys(each.missing for each in self.verdicts if each.missing))


def write_report(pairs: list[Pair], folder: Path, run_began_at_unix_seconds: float | None = None) -> list[Verdict]:
    """Write every file of the report; return the verdicts, one for each experiment."""
    series = all_series(pairs)
    files = {
        "comparison.csv": frames.comparison_frame(pairs, run_began_at_unix_seconds),
        "history.csv": frames.history_frame(pairs),
        "confusion.csv": frames.confusion_frame(pairs),
        "speedups.csv": frames.speedup_frame(pairs),
        "attribution.csv": frames.attribution_frame(pairs),
        "scaling.csv": frames.scaling_frame(series),
        "elsewhere.csv": frames.elsewhere_frame(pairs),
    }
    shown = {
        "Speed-ups": tables.speedup_table(pairs),
        "Why": tables.why_table(pairs),
        "Is it the same model?": tables.parity_table(pairs),
        "When does it pay?": tables.paying_table(pairs, series),
        "Recorded elsewhere": tables.elsewhere_table(pairs),
        "All figures": tables.shown_table(files["comparison.csv"]),
    }
    report = Report(
        [verdict(pair) for pair in pairs],
        [gallery for gallery in _galleries(files, frames.break_even_frame(series)) if gallery.pictures],
        pictures.confusion_pictures(files["confusion.csv"]),
        {title: table for title, table in shown.items() if len(table)},
        tables.measured_table(pairs),
    )
    for former in (METRICS, FIGURES):  # none is left of another report
        shutil.rmtree(folder / former, ignore_errors=True)
    for name, content in files.items():
        write_text_atomically(folder / name, content.to_csv(index=False, lineterminator="\n"))
    for experiment, metrics in frames.comparison_metrics(files["comparison.csv"]).items():  # DVC makes a row of each
        write_json_atomically(folder / METRICS / f"{experiment}.json", metrics)
    drawn = [gallery.pictures for gallery in report.galleries] + list(report.matrices.values())
    for picture in (picture for kind in drawn for picture in kind):  # for MLflow and for documents
        write_text_atomically(folder / FIGURES / f"{picture.name}.svg", picture.file)
    write_text_atomically(folder / "comparison.md", _as_markdown(report))
    write_text_atomically(folder / "index.html", _as_page(report))
    return report.verdicts


def _galleries(files: dict[str, pd.DataFrame], break_evens: pd.DataFrame) -> list[Gallery]:
    return [
        Gallery(
            "How much faster is the GPU?",
            "Right of 1 the GPU is faster. A line is the 95 % interval; a dot without one is open.",
            "speedups.csv",
            pictures.speedup_pictures(files["speedups.csv"]),
        ),
        Gallery(
            "Where a step's time goes",
            "Each part of a step, the clock waiting for the device after it, as a share of the whole.",
            "attribution.csv",
            pictures.step_pictures(files["attribution.csv"]),
        ),
        Gallery(
            "Where the GPU begins to pay",
            "The speed-up of an epoch, with its 95 % interval; above 1 the GPU is faster.",
            "scaling.csv",
            pictures.break_even_pictures(files["scaling.csv"], break_evens),
        ),
        Gallery(
            "How they learned",
            "Validation loss: where devices' curves agree against epochs they learn alike; further left is sooner.",
            "history.csv",
            pictures.learning_curves(files["history.csv"]),
        ),
    ]


def _as_markdown(report: Report) -> str:
    lines = ["# photofinish", ""]
    for each in report.verdicts:
        lines += [f"* **{each.experiment}**: {each.answer}", *(f"  * {detail}" for detail in each.details)]
    lines += [f"\nWhy no GPU: {reason}" for reason in report.reasons]
    for title, table in {**report.tables, "Where and how often it was measured": report.measured}.items():
        lines += ["", f"## {title}", ""]
        lines += ["| " + " | ".join(table.columns) + " |", "|" + " --- |" * len(table.columns)]
        lines += ["| " + " | ".join(map(markdown_cell, row)) + " |" for row in table.to_numpy().tolist()]
    return "\n".join(lines) + "\n"


def _as_page(report: Report) -> str:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("photofinish.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["number_columns"] = number_columns
    # Lines of params.yaml, which stand between backticks, are set as such.
    environment.filters["with_code"] = lambda text: Markup(_CODE.sub(r"<code>\1</code>", str(escape(text))))  # noqa: S704
    return environment.get_template("report.html.j2").render(report=report)


def number_columns(table: pd.DataFrame) -> list[bool]:
    """Which columns hold figures: these are set flush right, and sorted by value."""
    columns = ([cell for cell in table.iloc[:, place] if cell != tables.NOTHING] for place in range(table.shape[1]))
    return [bool(cells) and all(map(_NUMBER.fullmatch, cells)) for cells in columns]
