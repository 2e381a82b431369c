"""Write the report: one page, Markdown for a pull request, CSV files, and files for DVC."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import asdict, fields
from itertools import accumulate
from pathlib import Path
from typing import Any

from photofinish.answer.record import Findings, Job, JobRecord
from photofinish.files import to_csv, to_json, write_text_atomically
from photofinish.reporting import tables
from photofinish.reporting.answers import Answers, write_answers
from photofinish.reporting.page import template
from photofinish.reporting.report_page import page_of
from photofinish.reporting.say import say
from photofinish.reporting.sentences import Verdict
from photofinish.reporting.tables import Rows, is_known
from photofinish.results import EpochMetrics

MOST_MARKDOWN_CHARACTERS = 60_000
"""GitHub accepts comments of up to 65,536 characters."""
_SPREADSHEET_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_RUN = ("experiment", "device", "run")
FILES: dict[str, tuple[str, ...]] = {
    "comparison.csv": tables.CSV_COLUMNS,
    "history.csv": (
        *(column.name for column in fields(EpochMetrics)), "training_seconds_so_far", *_RUN,
    ),
    "confusion.csv": (*_RUN, "actual", "predicted", "images"),
}  # fmt: skip
"""Columns of each of the report's CSV files."""


def write_report(record: Findings, folder: Path) -> Answers:
    jobs = record.jobs
    rows_of = tables.comparison_rows(jobs), history_rows(jobs), confusion_rows(jobs)
    for (name, columns), rows in zip(FILES.items(), rows_of, strict=True):
        cells = (map(_cell, row.values()) for row in rows)
        write_text_atomically(folder / name, to_csv(columns, cells))
    page = page_of(record)
    for picture in page.pictures:
        _write(folder / "figures" / f"{picture.name}.svg", picture.file)
    write_text_atomically(folder / "index.html", page.html)
    write_text_atomically(folder / "comparison.md", _markdown(page.answers, page.verdicts))
    write_answers(folder, page.answers)
    return page.answers


def write_for_dvc(record: Findings, folder: Path, metrics: Path, plots: Path) -> None:
    """Write the files that `dvc metrics` and `dvc plots` show, which Git keeps."""
    for job in record.jobs:
        if figures := tables.comparison_metrics(job):  # DVC shows each file as a row
            _write(metrics / f"{job.name}.json", to_json(figures))
    plots.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        shutil.copy(folder / name, plots)


def _write(path: Path, text: str) -> None:
    """Write a file without syncing the disk, because there may be many files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _markdown(answers: Answers, verdicts: list[Verdict]) -> str:
    """Return the answers as a comment on GitHub, with evidence in a fold."""
    text = template("comparison.md.j2").render(answers=answers, verdicts=verdicts, say=say)
    if len(text) > MOST_MARKDOWN_CHARACTERS:
        text = text[: text.rindex("\n", 0, MOST_MARKDOWN_CHARACTERS)] + f"\n\n{say('cut')}\n\n"
    return f"{text}</details>\n" if "<details>" in text else text


def history_rows(jobs: Iterable[JobRecord]) -> Rows:
    """Return every epoch of every run, with the training time up to its end."""
    return [
        asdict(epoch) | {"training_seconds_so_far": training_seconds} | _names(job, run)
        for job in jobs
        for run in job.runs
        if (model := run.trained)
        for epoch, training_seconds in zip(
            model.history,
            accumulate(timing.training_seconds for timing in model.epochs),
            strict=True,
        )
    ]


def confusion_rows(jobs: Iterable[JobRecord]) -> Rows:
    """Return how many test samples of each class were predicted as each class, for each run."""
    return [
        _names(job, run) | {"actual": actual, "predicted": predicted, "images": count}
        for job in jobs
        for run in job.runs
        if (model := run.trained)
        for actual, counts in zip(model.class_names, model.scores.confusion, strict=False)
        for predicted, count in zip(model.class_names, counts, strict=True)
    ]


def _names(job: JobRecord, run: Job) -> dict[str, Any]:
    """Return experiment, device, and both joined, for tools that group by a single column."""
    return {"experiment": job.name, "device": run.device, "run": f"{job.name} {run.device}"}


def _cell(value: object) -> object:
    """Return a cell. Before text that looks like a formula, it has an apostrophe."""
    if isinstance(value, str) and value.startswith(_SPREADSHEET_FORMULA):
        return f"'{value}"
    return value if is_known(value) else None
