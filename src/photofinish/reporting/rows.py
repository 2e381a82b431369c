"""Rows of the report's CSV files, with every digit, as pandas, DVC and MLflow read them."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import astuple, fields
from itertools import accumulate

from photofinish.comparing.device_results import Trained
from photofinish.comparing.pairs import AnyComparison
from photofinish.reporting.comparison_rows import COLUMNS as COMPARISON
from photofinish.reporting.comparison_rows import Rows, is_known
from photofinish.reporting.sentences import in_words
from photofinish.results import EpochMetrics

_SPREADSHEET_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_RUN = ("experiment", "device", "run")
COLUMNS: dict[str, tuple[str, ...]] = {
    "comparison.csv": tuple(column.name for column in COMPARISON),
    "history.csv": (
        *(column.name for column in fields(EpochMetrics)), "training_seconds_so_far", *_RUN,
    ),
    "confusion.csv": (*_RUN, "actual", "predicted", "images"),
    "speedups.csv": (
        "experiment", "of", "speedup", "low", "high", "cpu_seconds", "gpu_seconds", "verdict",
    ),
    "seeds.csv": (
        "experiment", "device", "seed", "score", "score_name", "test_loss", "target_epoch",
        "target_seconds",
    ),
    "renting.csv": (
        "experiment", "accelerator", "full_name", "fits", "needed_bytes_at_least",
        "step_seconds_at_least", "arithmetic_seconds", "memory_seconds", "link_seconds",
        "epoch_seconds_at_least", "job_seconds_at_least", "epoch_times_as_fast_at_most",
        "job_times_as_fast_at_most", "hour_price", "currency", "price_of", "price_as_of",
        "price_is_old", "cost_at_least", "target_seconds_at_least", "target_cost_at_least",
        "epoch_seconds_estimated", "job_seconds_estimated", "cost_estimated",
    ),
}  # fmt: skip
"""Columns of each of the report's CSV files."""


def history_rows(pairs: Iterable[AnyComparison]) -> Rows:
    """Return every epoch of every run, with the time its training had taken by then."""
    rows = []
    for result in _trained(pairs):
        so_far = accumulate(epoch.training_seconds for epoch in result.timings.epochs)
        for epoch, training_seconds in zip(result.history, so_far, strict=True):
            rows.append((*astuple(epoch), training_seconds, *_run(result)))
    return _named("history.csv", rows)


def confusion_rows(pairs: Iterable[AnyComparison]) -> Rows:
    """Return how many test samples of each class each run took for each class."""
    rows = []
    for result in _trained(pairs):
        names = result.record.class_names
        for actual, counts in zip(names, result.scores.confusion, strict=False):
            for predicted, count in zip(names, counts, strict=True):
                rows.append((*_run(result), actual, predicted, count))
    return _named("confusion.csv", rows)


def _trained(pairs: Iterable[AnyComparison]) -> list[Trained]:
    """Return the results of experiments. Scripts have neither a history nor predictions."""
    return [run for pair in pairs for run in pair.trained if isinstance(run, Trained)]


def _run(result: Trained) -> tuple[str, ...]:
    """Return experiment, device, and both in one, for tools that group by a single column."""
    return result.experiment, result.device, f"{result.experiment} {result.device}"


def speedup_rows(pairs: Iterable[AnyComparison]) -> Rows:
    """Return three rows for each experiment that a GPU trained."""
    rows = []
    for pair in pairs:
        for speedup in pair.compared.speedups.values() if pair.compared else ():
            low, high = speedup.interval or (None, None)
            times = speedup.cpu_seconds, speedup.device_seconds
            ratios = speedup.ratio, low, high
            rows.append((pair.experiment, speedup.kind, *ratios, *times, in_words(speedup)))
    return _named("speedups.csv", rows)


def seed_rows(pairs: Iterable[AnyComparison]) -> Rows:
    """Return a row for each seed of an experiment that was trained from several."""
    rows: list[tuple[object, ...]] = []
    for pair in pairs:
        for device, over in pair.seeds.items():
            for index, seed in enumerate(over.seeds):
                target = over.targets[index] if over.targets else None
                rows.append((
                    pair.experiment, device, seed, over.score.values[index], over.score_name,
                    over.test_loss.values[index],
                    target and target.epoch, target and target.seconds,
                ))  # fmt: skip
    return _named("seeds.csv", rows)


def renting_rows(pairs: Iterable[AnyComparison]) -> Rows:
    """Return a row for each experiment and accelerator: bounds and estimates, none measured."""
    rows = []
    for pair in pairs:
        for offer in pair.renting.offers:
            accelerator, step, price = offer.accelerator, offer.step, offer.price
            about = offer.estimate
            rows.append((
                pair.experiment, accelerator.name, accelerator.full_name, offer.fits,
                offer.needed_bytes, step.seconds, step.arithmetic_seconds, step.memory_seconds,
                step.link_seconds, offer.epoch_seconds, offer.job_seconds, offer.epoch_at_most,
                offer.job_at_most, price and price.amount, price and price.currency,
                price and price.where, price and price.as_of and price.as_of.isoformat(),
                price and price.is_old(pair.renting.trained_on), offer.cost, offer.target_seconds,
                offer.target_cost, about and about.epoch_seconds, about and about.job_seconds,
                about and about.cost,
            ))  # fmt: skip
    return _named("renting.csv", rows)


def _named(file: str, rows: Iterable[tuple[object, ...]]) -> Rows:
    return [dict(zip(COLUMNS[file], row, strict=True)) for row in rows]


def as_csv(file: str, rows: Rows) -> str:
    """Return the text of one of the report's CSV files, with every digit."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS[file])
    for row in rows:
        writer.writerow([_cell(row[column]) for column in COLUMNS[file]])
    return text.getvalue()


def _cell(value: object) -> object:
    """Return a cell; an apostrophe keeps a spreadsheet from computing what looks like a formula."""
    if isinstance(value, str) and value.startswith(_SPREADSHEET_FORMULA):
        return f"'{value}"
    return value if is_known(value) else None
