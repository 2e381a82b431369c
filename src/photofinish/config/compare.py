"""Settings of the comparison, and its tables of accelerators and list prices.

`tables/README.md` describes the tables' columns and how to update them.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    TypeAdapter,
    ValidationInfo,
    field_validator,
)

from photofinish.config.base import Name, NonNegativeFloat, PositiveFloat, Settings, is_name
from photofinish.config.precisions import PRECISIONS
from photofinish.config.scripts import ScriptPlan
from photofinish.wording import unknown_name

_TABLES = Path(__file__).parent / "tables"
SHORT_LIST = ("T4", "L4", "A10G", "L40S", "A100", "H100")
"""Default accelerators: clouds rent each as a single GPU, and its price here has a date."""
RENTAL_MINUTES = 5.0
"""Minutes to start and set up a rented machine.

SkyPilot starts a machine in 2.2 to 3.0 min on AWS and GCP and in 5.8 min on Azure
(skypilot#1111, #1092, #3695). Installing torch and this package took 2.7 min on two cores.
"""


@dataclass(frozen=True)
class Accelerator:
    """Data sheet of an accelerator. None means unknown or not supported."""

    name: str
    full_name: str
    """Name that its driver reports."""
    kind: str
    """PyTorch's device type."""
    year: int
    memory_gib: float
    memory_gb_per_s: float
    tflops: dict[str, float]
    """Dense rate at the boost clock, by precision."""

    def effective_precision(self, precision: str) -> str:
        """Return `precision`, but fp32 for tf32 unless this is an NVIDIA GPU with bf16."""
        has_tf32 = self.kind == "cuda" and "bf16" in self.tflops
        return "fp32" if precision == "tf32" and not has_tf32 else precision


@dataclass(frozen=True)
class ListPrice:
    """Price of a whole machine for an hour, on demand."""

    accelerator: str
    cloud: str
    instance: str
    gpus: int
    """GPUs of the machine, which are all paid for."""
    vcpus: int
    """Threads of its CPU."""
    usd_per_hour: float
    region: str
    as_of: date


@cache
def accelerators() -> dict[str, Accelerator]:
    sheets = []
    for row in _rows("accelerators.csv"):
        sheet: dict[str, Any] = {key: text or None for key, text in row.items()}
        rates = {name: row[f"{name}_tflops"] for name in PRECISIONS}
        sheet["tflops"] = {name: rate for name, rate in rates.items() if rate}
        sheets.append(sheet)
    return {sheet.name: sheet for sheet in TypeAdapter(list[Accelerator]).validate_python(sheets)}


@cache
def list_prices() -> tuple[ListPrice, ...]:
    return TypeAdapter(tuple[ListPrice, ...]).validate_python(tuple(_rows("prices.csv")))


def _rows(name: str) -> Iterator[dict[str, str]]:
    with (_TABLES / name).open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def _check_references(value: Any) -> Any:
    if value in ("all", "none"):
        return value
    if isinstance(value, list | tuple) and all(map(is_name, value)):
        return tuple(dict.fromkeys(value))
    raise ValueError("must be 'all', 'none', or a list of names of folders in reference/")


def _check_accelerator(name: str) -> str:
    if name not in accelerators():
        raise ValueError(unknown_name("accelerator", name, list(accelerators())))
    return name


def _expand_accelerators(value: Any) -> Any:
    if value == "all":
        return tuple(accelerators())
    if value == "none":
        return ()
    if isinstance(value, list | tuple):
        return tuple(value)
    raise ValueError("must be 'all', 'none', or a list of accelerators' names, such as [T4]")


AcceleratorName = Annotated[str, AfterValidator(_check_accelerator)]


class Prices(Settings):
    """Prices that the user pays. Costs without a price are not shown."""

    currency: Annotated[str, Field(min_length=1, max_length=8)] = "USD"
    cpu_hour: NonNegativeFloat | None = None
    """Price of an hour of the whole machine of `train-cpu`."""
    gpu_hour: NonNegativeFloat | None = None
    """Price of an hour of the machine of `train-gpu` with all GPUs in use."""
    accelerator_hour: dict[AcceleratorName, NonNegativeFloat] = Field(default_factory=dict)
    """Prices of machines with these accelerators, instead of list prices."""


References = Literal["all", "none"] | tuple[Name, ...]
AcceleratorNames = Annotated[tuple[AcceleratorName, ...], BeforeValidator(_expand_accelerators)]


class Comparing(Settings):
    """Section `compare`."""

    target_accuracy: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    """Validation accuracy whose time to reach is reported."""
    prices: Prices = Prices()
    budget: PositiveFloat | None = None
    """Maximum price of one training on one device, in the prices' currency."""
    worth_it: PositiveFloat = 1.5
    """Smallest bound on the job's speed-up for which a GPU in this machine may be worth it.

    Chosen by hand: real GPUs stay below their bound.
    """
    rental_minutes: NonNegativeFloat | None = None
    """Minutes until a GPU is ready. The default depends on whether it is rented (`terms_of`)."""
    worth_saving: NonNegativeFloat = 5.0
    """Minutes that a rented GPU must save after its setup."""
    same_model_points: PositiveFloat = 1.0
    """Percentage points within which two devices' test accuracies are equivalent."""
    references: Annotated[References, BeforeValidator(_check_references)] = "all"
    """Records in reference/ that are compared with this machine's results."""
    accelerators: AcceleratorNames = SHORT_LIST
    """Accelerators on which the job is estimated from their data sheets."""

    @field_validator("budget", mode="before")
    @classmethod
    def _check_budget(cls, value: Any, info: ValidationInfo) -> Any:
        """Require a number and both devices' prices."""
        prices = info.data.get("prices")
        if value is None or prices is None:  # the prices have errors, which are reported
            return None
        if isinstance(value, str):
            raise ValueError("must be a number without quotes or a currency, as in `budget: 5`")
        for device, price in (("cpu", prices.cpu_hour), ("gpu", prices.gpu_hour)):
            if price is None:
                raise ValueError(f"needs compare.prices.{device}_hour too: 0 if it costs nothing")
        return value


class ComparePlan(Comparing):
    """Plan of the comparison: data/plan/compare.json."""

    experiments: tuple[Name, ...]
    """Names in the order of params.yaml."""
    scripts: tuple[ScriptPlan, ...] = ()
