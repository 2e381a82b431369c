"""Write the report: one page, Markdown for a pull request, CSV files, and files for DVC."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import astuple, fields
from itertools import accumulate
from pathlib import Path

from photofinish.answer.comparison import Comparison
from photofinish.answer.decision import decide_all
from photofinish.files import to_csv, to_json, write_text_atomically
from photofinish.reporting.answers import Answers, write_answers
from photofinish.reporting.comparison_rows import (
    COLUMNS,
    Rows,
    comparison_metrics,
    comparison_rows,
    is_known,
)
from photofinish.reporting.page import VERDICT
from photofinish.reporting.report_page import page_of
from photofinish.reporting.say import say
from photofinish.reporting.sentences import Verdict
from photofinish.results import EpochMetrics
from photofinish.results.trained import Trained
from photofinish.wording import markdown_text

MOST_MARKDOWN_CHARACTERS = 60_000
"""GitHub accepts comments of up to 65,536 characters."""
_FOLD = "<details>"
_SPREADSHEET_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_RUN = ("experiment", "device", "run")
FILES: dict[str, tuple[str, ...]] = {
    "comparison.csv": tuple(column.name for column in COLUMNS),
    "history.csv": (
        *(column.name for column in fields(EpochMetrics)), "training_seconds_so_far", *_RUN,
    ),
    "confusion.csv": (*_RUN, "actual", "predicted", "images"),
}  # fmt: skip
"""Columns of each of the report's CSV files."""


def write_report(
    pairs: Sequence[Comparison], folder: Path, scripts: Sequence[Comparison] = ()
) -> Answers:
    everything = [*pairs, *scripts]
    decisions = decide_all(everything)
    tables = comparison_rows(everything, decisions), history_rows(pairs), confusion_rows(pairs)
    for (name, columns), rows in zip(FILES.items(), tables, strict=True):
        cells = (map(_cell, row.values()) for row in rows)
        write_text_atomically(folder / name, to_csv(columns, cells))
    page = page_of(everything, decisions)
    for picture in page.pictures:
        _write(folder / "figures" / f"{picture.name}.svg", picture.file)
    write_text_atomically(folder / "index.html", page.html)
    write_text_atomically(folder / "comparison.md", _markdown(page.answers, page.verdicts))
    write_answers(folder, page.answers)
    return page.answers


def write_for_dvc(pairs: Sequence[Comparison], folder: Path, metrics: Path, plots: Path) -> None:
    """Write the files that `dvc metrics` and `dvc plots` show, which Git keeps."""
    for experiment, figures in comparison_metrics(pairs).items():
        _write(metrics / f"{experiment}.json", to_json(figures))  # DVC shows each file as a row
    plots.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        shutil.copy(folder / name, plots)


def _write(path: Path, text: str) -> None:
    """Write a file without syncing the disk, because there may be many files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _markdown(answers: Answers, verdicts: list[Verdict]) -> str:
    """Return the answers as a comment on GitHub, with evidence in a fold."""
    heading = answers.overview[0]
    lines = ["# photofinish", "", markdown_text(answers.summary), "", _markdown_row(heading)]
    lines.append(_markdown_row(["---"] * len(heading)))
    for row in answers.overview:
        cells = {name: markdown_text(cell) for name, cell in row.items()}
        lines.append(_markdown_row((cells | {VERDICT: f"**{cells[VERDICT]}**"}).values()))
    for line in (*answers.legend, *answers.reasons):
        lines += ["", markdown_text(line)]
    lines += ["", _FOLD, f"<summary>{say('evidence')}</summary>", ""]
    for each in verdicts:
        evidence = [each.answer, *each.cautions, *each.details]
        if each.model:
            evidence.append(say("same model", model=each.model))
        lines += [f"## {markdown_text(each.experiment)}", ""]
        lines += [*(f"* {markdown_text(line)}" for line in evidence if line), ""]
    text = ""
    for line in lines:
        if len(text) + len(line) > MOST_MARKDOWN_CHARACTERS:
            text += f"\n{say('cut')}\n\n"
            break
        text += f"{line}\n"
    return f"{text}</details>\n" if _FOLD in text else text


def _markdown_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def history_rows(pairs: Iterable[Comparison]) -> Rows:
    """Return every epoch of every run, with the training time up to its end."""
    rows = []
    for result in _trained(pairs):
        so_far = accumulate(epoch.training_seconds for epoch in result.epochs)
        for epoch, training_seconds in zip(result.history, so_far, strict=True):
            rows.append((*astuple(epoch), training_seconds, *_run(result)))
    return _named("history.csv", rows)


def confusion_rows(pairs: Iterable[Comparison]) -> Rows:
    """Return how many test samples of each class were predicted as each class, for each run."""
    rows = []
    for result in _trained(pairs):
        names = result.class_names
        for actual, counts in zip(names, result.scores.confusion, strict=False):
            for predicted, count in zip(names, counts, strict=True):
                rows.append((*_run(result), actual, predicted, count))
    return _named("confusion.csv", rows)


def _trained(pairs: Iterable[Comparison]) -> list[Trained]:
    """Return the results of experiments: scripts have no history."""
    return [run.trained for pair in pairs for run in pair.trained if run.trained]


def _run(result: Trained) -> tuple[str, ...]:
    """Return experiment, device, and both joined, for tools that group by a single column."""
    return result.experiment, result.device, f"{result.experiment} {result.device}"


def _named(file: str, rows: Iterable[tuple[object, ...]]) -> Rows:
    return [dict(zip(FILES[file], row, strict=True)) for row in rows]


def _cell(value: object) -> object:
    """Return a cell. Before text that looks like a formula, it has an apostrophe."""
    if isinstance(value, str) and value.startswith(_SPREADSHEET_FORMULA):
        return f"'{value}"
    return value if is_known(value) else None
