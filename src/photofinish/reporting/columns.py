"""Columns of the tables that the page and a CSV file share: one list for both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from photofinish.comparing.estimated_job import Estimate
from photofinish.comparing.pairs import AnyComparison
from photofinish.comparing.prices import Price
from photofinish.comparing.renting import RentalOption
from photofinish.comparing.speedups import Interval, Speedup
from photofinish.reporting.comparison_rows import Rows
from photofinish.reporting.sentences import NAMES, in_words
from photofinish.wording import byte_size, money, ratio, seconds

ItemT = TypeVar("ItemT")
Table = list[dict[str, str]]
"""One dictionary per row: its cells by their headings, which are equal in all rows."""
NOTHING = "n/a"
SHORT = "under 1 s"


@dataclass(frozen=True)
class Column(Generic[ItemT]):
    csv: str | None
    """Name in the CSV file, None for a column of the page alone."""
    value: Callable[[ItemT], Any]
    heading: str | None = None
    """Heading on the page, None for a column of the CSV file alone."""
    write: Callable[[Any], str] = str
    """Writes a value on the page."""


def csv_names(columns: Iterable[Column[Any]]) -> tuple[str, ...]:
    return tuple(column.csv for column in columns if column.csv)


def csv_rows(columns: Sequence[Column[ItemT]], items: Iterable[ItemT]) -> Rows:
    """Return the values of each item by column."""
    named = [(column.csv, column.value) for column in columns if column.csv]
    return [{name: value(item) for name, value in named} for item in items]


def page_rows(columns: Sequence[Column[ItemT]], items: Iterable[ItemT]) -> Table:
    """Return the cells of each item by heading."""
    rows = []
    for item in items:
        row = {}
        for column in columns:
            if column.heading:
                value = column.value(item)
                row[column.heading] = NOTHING if value is None else column.write(value)
        rows.append(row)
    return rows


class OneSpeedup(NamedTuple):
    """A row of speedups.csv."""

    experiment: str
    found: Speedup


def all_speedups(pairs: Iterable[AnyComparison]) -> Iterator[OneSpeedup]:
    """Yield three rows for each experiment that a GPU trained."""
    for pair in pairs:
        for found in pair.compared.speedups.values() if pair.compared else ():
            yield OneSpeedup(pair.experiment, found)


def _interval(interval: Interval) -> str:
    return " to ".join(map(ratio, interval))


SPEEDUPS: tuple[Column[OneSpeedup], ...] = (
    Column("experiment", lambda row: row.experiment),
    Column("of", lambda row: row.found.kind, "of", NAMES.__getitem__),
    Column("cpu_seconds", lambda row: row.found.cpu_seconds, "CPU", seconds),
    Column("gpu_seconds", lambda row: row.found.device_seconds, "GPU", seconds),
    Column("speedup", lambda row: row.found.ratio, "speed-up", lambda found: f"{ratio(found)}x"),
    Column("low", lambda row: row.found.interval and row.found.interval[0]),
    Column("high", lambda row: row.found.interval and row.found.interval[1]),
    Column(None, lambda row: row.found.interval, "9 of 10", _interval),
    Column("verdict", lambda row: in_words(row.found), "verdict"),
)


class Rental(NamedTuple):
    """A row of renting.csv."""

    pair: AnyComparison
    option: RentalOption

    @property
    def price(self) -> Price | None:
        return self.option.price

    @property
    def estimate(self) -> Estimate | None:
        return self.option.estimate

    @property
    def is_old(self) -> bool | None:
        """True if the price is so old that it may have changed."""
        return self.price.is_old(self.pair.renting.trained_on) if self.price else None

    @property
    def estimated_job(self) -> str | None:
        if self.estimate is None:
            return None
        low, high = map(seconds, self.estimate.job_interval)
        return f"{seconds(self.estimate.job_seconds)} ({low} to {high})"

    def in_currency(self, amount: float | None) -> str | None:
        if amount is None or self.price is None:
            return None
        return money(amount, self.price.currency)

    @property
    def memory(self) -> str:
        needed, most = byte_size(self.option.needed_bytes), self.option.accelerator.memory_gib
        return f"{self.option.fits}, {needed} of {most:g} GiB"

    @property
    def hour(self) -> str:
        if self.price is None:
            return "no price known"
        day = f", {self.price.as_of}" if self.price.as_of else ""
        return f"{self.in_currency(self.price.amount)}{day}{', old' if self.is_old else ''}"


def all_rentals(pairs: Iterable[AnyComparison]) -> Iterator[Rental]:
    """Yield a row for each experiment and accelerator."""
    for pair in pairs:
        for option in pair.renting.offers:
            yield Rental(pair, option)


ESTIMATED: tuple[Column[Rental], ...] = (
    Column(
        "epoch_seconds_estimated",
        lambda row: row.estimate and row.estimate.epoch_seconds,
    ),
    Column("job_seconds_estimated", lambda row: row.estimate and row.estimate.job_seconds),
    Column(None, lambda row: row.estimated_job, "the job, estimated"),
    Column("cost_estimated", lambda row: row.estimate and row.estimate.cost),
    Column(
        None,
        lambda row: row.in_currency(row.estimate.cost) if row.estimate else None,
        "cost, estimated",
    ),
)
"""Estimates, which the page has only if there are any."""
RENTING: tuple[Column[Rental], ...] = (
    Column("experiment", lambda row: row.pair.experiment),
    Column("accelerator", lambda row: row.option.accelerator.name, "accelerator"),
    Column("full_name", lambda row: row.option.accelerator.full_name),
    *ESTIMATED,
    Column("step_seconds_at_least", lambda row: row.option.step.seconds),
    Column("arithmetic_seconds", lambda row: row.option.step.arithmetic_seconds),
    Column("memory_seconds", lambda row: row.option.step.memory_seconds),
    Column("link_seconds", lambda row: row.option.step.link_seconds),
    Column("epoch_seconds_at_least", lambda row: row.option.epoch_seconds),
    Column(
        "job_seconds_at_least",
        lambda row: row.option.job_seconds,
        "the job at least",
        lambda least: seconds(least) if least >= 1 else SHORT,
    ),
    Column("epoch_times_as_fast_at_most", lambda row: row.option.epoch_at_most),
    Column("job_times_as_fast_at_most", lambda row: row.option.job_at_most),
    Column("cost_at_least", lambda row: row.option.cost),
    Column(None, lambda row: row.in_currency(row.option.cost), "cost at least"),
    Column("target_seconds_at_least", lambda row: row.option.target_seconds),
    Column("target_cost_at_least", lambda row: row.option.target_cost),
    Column("fits", lambda row: row.option.fits),
    Column("needed_bytes_at_least", lambda row: row.option.needed_bytes),
    Column(None, lambda row: row.memory, "fits, memory at least"),
    Column("hour_price", lambda row: row.price and row.price.amount),
    Column("currency", lambda row: row.price and row.price.currency),
    Column("price_of", lambda row: row.price and row.price.where),
    Column(
        "price_as_of",
        lambda row: row.price and row.price.as_of and f"{row.price.as_of}",
    ),
    Column("price_is_old", lambda row: row.is_old),
    Column(None, lambda row: row.hour, "an hour"),
)
