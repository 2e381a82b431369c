"""The settings of the comparison, which no stage but `compare` reads, and what they name: accelerators by their data
sheets and list prices of machines that have them, facts, each with its source and date.

`tables/README.md` tells what the tables' columns hold and how they are brought up to date.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter

from photofinish.params.base import Name, NonNegativeFloat, PositiveFloat, Settings, is_name
from photofinish.params.mistakes import unknown_name

_TABLES = Path(__file__).parent / "tables"
SHORT_LIST = ("T4", "L4", "A10G", "L40S", "A100", "H100")
"""what is told of unless params.yaml names others: those that clouds let by the one and that have a dated price"""


@dataclass(frozen=True)
class Accelerator:
    """One, as its maker describes it; what isn't known, or what it can't do, is None."""

    name: str
    full_name: str
    """as its driver calls it"""
    kind: str
    """as PyTorch does"""
    memory_gib: float
    memory_gb_per_s: float
    tflops: dict[str, float]
    """dense, at the boost clock, by precision"""
    cache_mib: float
    """the last one before memory, whichever side it is on"""
    link_gb_per_s: float | None
    """from the host, one way; None where both share the memory"""

    def best_tflops(self, precision: str) -> float | None:
        """No computing in that precision is faster: where its rate isn't known, that of the next shorter type."""
        wanted = _PRECISIONS[_PRECISIONS.index(precision) :]
        return next((self.tflops[each] for each in wanted if each in self.tflops), None)


_PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
"""none is slower than those before it"""


@dataclass(frozen=True)
class ListPrice:
    """Of an hour of a whole machine, on demand."""

    accelerator: str
    cloud: str
    instance: str
    gpus: int
    """all of them are paid for"""
    usd_per_hour: float
    region: str
    as_of: date


@cache
def accelerators() -> dict[str, Accelerator]:
    """All that are known, by name."""
    known = []
    for row in _rows("accelerators.csv"):
        given = {key: text or None for key, text in row.items()}
        known.append(given | {"tflops": {each: row[f"{each}_tflops"] for each in _PRECISIONS if row[f"{each}_tflops"]}})
    return {one.name: one for one in TypeAdapter(list[Accelerator]).validate_python(known)}


@cache
def list_prices() -> tuple[ListPrice, ...]:
    """All that are known."""
    return TypeAdapter(tuple[ListPrice, ...]).validate_python(tuple(_rows("prices.csv")))


def _rows(name: str) -> Iterator[dict[str, str]]:
    with (_TABLES / name).open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


_LONGEST_CURRENCY = 8


def _check_currency(value: Any) -> Any:
    if isinstance(value, str) and 0 < len(value.strip()) <= _LONGEST_CURRENCY and value.isprintable():
        return value
    raise ValueError("must be a currency's name or sign, such as USD")


def _each_once(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) < len(names):
        raise ValueError("must name each once")
    return names


def _check_references(value: Any) -> Any:
    if value in ("all", "none"):
        return value
    if isinstance(value, list | tuple) and all(map(is_name, value)):
        return _each_once(tuple(value))
    raise ValueError("must be 'all', 'none', or a list of names of folders in reference/")


def _check_accelerator(name: str) -> str:
    if name in accelerators():
        return name
    raise ValueError(unknown_name("accelerator", name, list(accelerators())))


def _all_or_none(value: Any) -> Any:
    if isinstance(value, str) and value not in ("all", "none"):
        meant = f", in brackets: [{value}]" if value in accelerators() else ""
        raise ValueError(f"must be 'all', 'none', or a list of accelerators' names{meant}")
    if isinstance(value, str):
        return tuple(accelerators()) if value == "all" else ()
    return tuple(value) if isinstance(value, list) else value


AcceleratorName = Annotated[str, AfterValidator(_check_accelerator)]


class Prices(Settings):
    """Where one isn't given, what it would price isn't either."""

    currency: Annotated[str, BeforeValidator(_check_currency)] = "USD"
    cpu_hour: NonNegativeFloat | None = None
    """of the machine that `train-cpu` runs on, whole"""
    gpu_hour: NonNegativeFloat | None = None
    """of the machine that `train-gpu` runs on, with all the GPUs in use"""
    kilowatt_hour: NonNegativeFloat | None = None
    """of energy, added to the hours where it is paid for besides"""
    accelerator_hour: dict[AcceleratorName, NonNegativeFloat] = Field(default_factory=dict)
    """of a machine with one of these, which could be rented: they go before list prices"""


class Watts(Settings):
    """What the device draws while it trains, as its owner knows it: for estimates where nothing can be measured."""

    cpu: PositiveFloat | None = None
    gpu: PositiveFloat | None = None
    """of all the GPUs in use together"""


class Comparing(Settings):
    """What params.yaml says of it."""

    target_accuracy: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    """on the validation images: how soon is it reached?"""
    prices: Prices = Prices()
    watts: Watts = Watts()
    references: Annotated[Literal["all", "none"] | tuple[Name, ...], BeforeValidator(_check_references)] = "all"
    """which machines' records in reference/ are set beside this machine's results"""
    accelerators: Annotated[tuple[AcceleratorName, ...], BeforeValidator(_all_or_none), AfterValidator(_each_once)] = (
        SHORT_LIST
    )
    """which are told of by their data sheets: what training on them would at least take and cost"""


class ComparePlan(Comparing):
    """data/plan/compare.json."""

    experiments: tuple[Name, ...]
    """in the order of params.yaml, which is that of the report"""
