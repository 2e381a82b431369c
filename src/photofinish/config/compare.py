"""Settings of the comparison, and the tables of accelerators and list prices that they name.

`tables/README.md` says what the tables' columns hold and how to update them.
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

from photofinish.config.base import Name, NonNegativeFloat, PositiveFloat, Settings, is_name
from photofinish.config.mistakes import unknown_name

_TABLES = Path(__file__).parent / "tables"
SHORT_LIST = ("T4", "L4", "A10G", "L40S", "A100", "H100")
"""Default accelerators: those that clouds rent singly and that have a dated price."""


@dataclass(frozen=True)
class Accelerator:
    """Data sheet of an accelerator. None for what is unknown or not supported."""

    name: str
    full_name: str
    """Name that its driver reports."""
    kind: str
    """PyTorch's device type."""
    memory_gib: float
    memory_gb_per_s: float
    tflops: dict[str, float]
    """Dense rate at the boost clock, by precision."""
    cache_mib: float
    """Size of the last-level cache."""
    link_gb_per_s: float | None
    """Rate from the host, one way. None if both share the memory."""

    def best_tflops(self, precision: str) -> float | None:
        """Return the rate in that precision, or if it is unknown, the rate of the next shorter type."""
        wanted = _PRECISIONS[_PRECISIONS.index(precision) :]
        return next((self.tflops[each] for each in wanted if each in self.tflops), None)


_PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
"""Ordered by rate, the slowest first."""


@dataclass(frozen=True)
class ListPrice:
    """On-demand price of an hour of a whole machine."""

    accelerator: str
    cloud: str
    instance: str
    gpus: int
    """GPUs of the machine; all are paid for."""
    usd_per_hour: float
    region: str
    as_of: date


@cache
def accelerators() -> dict[str, Accelerator]:
    """Return the table of accelerators, by name."""
    known = []
    for row in _rows("accelerators.csv"):
        given = {key: text or None for key, text in row.items()}
        known.append(given | {"tflops": {each: row[f"{each}_tflops"] for each in _PRECISIONS if row[f"{each}_tflops"]}})
    return {one.name: one for one in TypeAdapter(list[Accelerator]).validate_python(known)}


@cache
def list_prices() -> tuple[ListPrice, ...]:
    """Return the table of list prices."""
    return TypeAdapter(tuple[ListPrice, ...]).validate_python(tuple(_rows("prices.csv")))


def _rows(name: str) -> Iterator[dict[str, str]]:
    with (_TABLES / name).open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


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
    """Prices of the user. What has no price is not shown."""

    currency: Annotated[str, Field(min_length=1, max_length=8)] = "USD"
    cpu_hour: NonNegativeFloat | None = None
    """Price of an hour of the whole machine of `train-cpu`."""
    gpu_hour: NonNegativeFloat | None = None
    """Price of an hour of the machine of `train-gpu` with all GPUs in use."""
    kilowatt_hour: NonNegativeFloat | None = None
    """Price of energy, added to the hours."""
    accelerator_hour: dict[AcceleratorName, NonNegativeFloat] = Field(default_factory=dict)
    """Prices of machines with these accelerators, instead of list prices."""


class Watts(Settings):
    """Power of the device while it trains, for estimates where it cannot be measured."""

    cpu: PositiveFloat | None = None
    gpu: PositiveFloat | None = None
    """Power of all GPUs in use."""


class Comparing(Settings):
    """Section `compare`."""

    target_accuracy: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    """Validation accuracy whose time to reach is reported."""
    prices: Prices = Prices()
    watts: Watts = Watts()
    references: Annotated[Literal["all", "none"] | tuple[Name, ...], BeforeValidator(_check_references)] = "all"
    """Records in reference/ that are compared with this machine's results."""
    accelerators: Annotated[tuple[AcceleratorName, ...], BeforeValidator(_all_or_none), AfterValidator(_each_once)] = (
        SHORT_LIST
    )
    """Accelerators for which bounds are computed from their data sheets."""


class ComparePlan(Comparing):
    """data/plan/compare.json."""

    experiments: tuple[Name, ...]
    """In the order of params.yaml."""
