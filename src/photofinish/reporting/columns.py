"""Columns of tables that are on the page and in a CSV file: one list for both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from photofinish.comparing.renting import RentalOption
from photofinish.comparing.speedups import Speedup
from photofinish.reporting.comparison_rows import Rows
from photofinish.reporting.sentences import NAMES, in_words
from photofinish.wording import byte_size, interval_text, money, ratio, seconds

ItemT = TypeVar("ItemT")
Table = list[dict[str, str]]
"""Rows of a table, each a dictionary of cells by heading. All rows have equal headings."""
NOTHING = "n/a"


@dataclass(frozen=True)
class Column(Generic[ItemT]):
    csv: str | None
    """Name in the CSV file, or None for a column that only the page has."""
    value: Callable[[ItemT], Any]
    heading: str | None = None
    """Heading on the page, or None for a column that only the CSV file has."""
    write: Callable[[Any], str] = str
    """Function that formats a value for the page."""


def csv_names(columns: Iterable[Column[Any]]) -> tuple[str, ...]:
    """Return the header of the CSV file. The first column is the experiment's name."""
    return ("experiment", *(column.csv for column in columns if column.csv))


def csv_rows(
    columns: Sequence[Column[ItemT]], items: Iterable[tuple[str, Iterable[ItemT]]]
) -> Rows:
    """Return a row for each item of each experiment."""
    named = [(column.csv, column.value) for column in columns if column.csv]
    return [
        {"experiment": experiment, **{name: value(item) for name, value in named}}
        for experiment, each in items
        for item in each
    ]


def page_rows(columns: Sequence[Column[ItemT]], items: Iterable[ItemT]) -> Table:
    """Return, for each item, its cells by heading."""
    rows = []
    for item in items:
        row = {}
        for column in columns:
            if column.heading:
                value = column.value(item)
                row[column.heading] = NOTHING if value is None else column.write(value)
        rows.append(row)
    return rows


SPEEDUPS: tuple[Column[Speedup], ...] = (
    Column("of", lambda found: found.kind, "of", NAMES.__getitem__),
    Column("cpu_seconds", lambda found: found.cpu_seconds, "CPU", seconds),
    Column("gpu_seconds", lambda found: found.device_seconds, "GPU", seconds),
    Column("speedup", lambda found: found.ratio, "speed-up", lambda value: f"{ratio(value)}x"),
    Column("low", lambda found: found.interval and found.interval[0]),
    Column("high", lambda found: found.interval and found.interval[1]),
    Column(None, lambda found: found.interval, "9 of 10", interval_text),
    Column("verdict", in_words, "verdict"),
)


def _estimated_job(option: RentalOption) -> str | None:
    if option.estimate is None:
        return None
    low, high = map(seconds, option.estimate.job_interval)
    return f"{seconds(option.estimate.job_seconds)} ({low} to {high})"


def _in_currency(option: RentalOption, amount: float | None) -> str | None:
    return None if amount is None or not option.price else money(amount, option.price.currency)


def _memory(option: RentalOption) -> str:
    needed, most = byte_size(option.needed_bytes), option.accelerator.memory_gib
    return f"{option.fits}, {needed} of {most:g} GiB"


def _hour(option: RentalOption) -> str:
    price = option.price
    if price is None:
        return "no price known"
    day = f", {price.as_of}" if price.as_of else ""
    old = ", old" if option.price_is_old else ""
    return f"{money(price.amount, price.currency)}{day}{old}"


ESTIMATED: tuple[Column[RentalOption], ...] = (
    Column("epoch_seconds_estimated", lambda each: each.estimate and each.estimate.epoch_seconds),
    Column("job_seconds_estimated", lambda each: each.estimate and each.estimate.job_seconds),
    Column(None, _estimated_job, "the job, estimated"),
    Column("cost_estimated", lambda each: each.estimate and each.estimate.cost),
    Column(None, lambda each: _in_currency(each, each.estimated_cost), "cost with its start"),
)
"""Columns of estimates. The page shows them if there are estimates."""
RENTING: tuple[Column[RentalOption], ...] = (
    Column("accelerator", lambda each: each.accelerator.name, "accelerator"),
    Column("full_name", lambda each: each.accelerator.full_name),
    *ESTIMATED,
    Column("loader_cores", lambda each: each.loader_need and each.loader_need.wanted_cores),
    Column("waiting_share", lambda each: each.loader_need and each.loader_need.waiting_share),
    Column("fits", lambda each: each.fits),
    Column("needed_bytes_at_least", lambda each: each.needed_bytes),
    Column(None, _memory, "fits, memory at least"),
    Column("hour_price", lambda each: each.price and each.price.amount),
    Column("currency", lambda each: each.price and each.price.currency),
    Column("price_of", lambda each: each.price and each.price.where),
    Column("price_as_of", lambda each: each.price and each.price.as_of and f"{each.price.as_of}"),
    Column("price_is_old", lambda each: each.price_is_old),
    Column(None, _hour, "an hour"),
)
