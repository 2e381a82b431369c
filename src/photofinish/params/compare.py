"""The settings of the comparison. No stage but `compare` reads them: changing one trains nothing again."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from photofinish.params.accelerators import SHORT_LIST, accelerators
from photofinish.params.base import Name, NonNegativeFloat, PositiveFloat, Settings, is_name
from photofinish.params.mistakes import unknown_name

_LONGEST_CURRENCY = 8


def _check_currency(value: Any) -> Any:
    if isinstance(value, str) and 0 < len(value.strip()) <= _LONGEST_CURRENCY and value.isprintable():
        return value
    raise ValueError("must be a currency's name or sign, such as USD")


def _check_references(value: Any) -> Any:
    if value in ("all", "none"):
        return value
    if isinstance(value, list | tuple) and all(map(is_name, value)):
        return tuple(value)
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
    accelerators: Annotated[tuple[AcceleratorName, ...], BeforeValidator(_all_or_none)] = SHORT_LIST
    """which are told of by their data sheets: what training on them would at least take and cost"""


class ComparePlan(Comparing):
    """data/plan/compare.json."""

    experiments: tuple[Name, ...]
    """in the order of params.yaml, which is that of the report"""
