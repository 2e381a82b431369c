"""Rows of the report's CSV files, in full precision, for pandas, DVC and MLflow."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, fields
from itertools import accumulate

from photofinish.answer.comparison import Comparison
from photofinish.answer.result import Trained
from photofinish.files import to_csv
from photofinish.reporting.comparison_rows import COLUMNS as COMPARISON
from photofinish.reporting.comparison_rows import Rows, is_known
from photofinish.results import EpochMetrics

_SPREADSHEET_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_RUN = ("experiment", "device", "run")
COLUMNS: dict[str, tuple[str, ...]] = {
    "comparison.csv": tuple(column.name for column in COMPARISON),
    "history.csv": (
        *(column.name for column in fields(EpochMetrics)), "training_seconds_so_far", *_RUN,
    ),
    "confusion.csv": (*_RUN, "actual", "predicted", "images"),
}  # fmt: skip
"""Columns of each of the report's CSV files."""


def history_rows(pairs: Iterable[Comparison]) -> Rows:
    """Return every epoch of every run, with the training time up to its end."""
    rows = []
    for result in _trained(pairs):
        so_far = accumulate(epoch.training_seconds for epoch in result.timings.epochs)
        for epoch, training_seconds in zip(result.history, so_far, strict=True):
            rows.append((*astuple(epoch), training_seconds, *_run(result)))
    return _named("history.csv", rows)


def confusion_rows(pairs: Iterable[Comparison]) -> Rows:
    """Return how many test samples of each class were predicted as each class, for each run."""
    rows = []
    for result in _trained(pairs):
        names = result.record.class_names
        for actual, counts in zip(names, result.scores.confusion, strict=False):
            for predicted, count in zip(names, counts, strict=True):
                rows.append((*_run(result), actual, predicted, count))
    return _named("confusion.csv", rows)


def _trained(pairs: Iterable[Comparison]) -> list[Trained]:
    """Return the results of experiments, since scripts have no history and no predictions."""
    return [run.trained for pair in pairs for run in pair.trained if run.trained]


def _run(result: Trained) -> tuple[str, ...]:
    """Return experiment, device, and both joined, for tools that group by a single column."""
    return result.experiment, result.device, f"{result.experiment} {result.device}"


def _named(file: str, rows: Iterable[tuple[object, ...]]) -> Rows:
    return [dict(zip(COLUMNS[file], row, strict=True)) for row in rows]


def as_csv(file: str, rows: Rows) -> str:
    """Return the text of one of the report's CSV files, in full precision."""
    columns = COLUMNS[file]
    return to_csv(columns, ([_cell(row[column]) for column in columns] for row in rows))


def _cell(value: object) -> object:
    """Return a cell. Before text that looks like a formula, it has an apostrophe."""
    if isinstance(value, str) and value.startswith(_SPREADSHEET_FORMULA):
        return f"'{value}"
    return value if is_known(value) else None
