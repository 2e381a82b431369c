"""Settings of the devices, with their prices and limits."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from photofinish.config.base import (
    Duration,
    Name,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Settings,
)
from photofinish.config.kinds import KindOrAuto
from photofinish.errors import SettingError

Strategy = Literal["ddp", "data_parallel"]


def _check_threads(value: Any) -> Any:
    if value == "auto":
        return None
    if type(value) is int and 1 <= value <= 1024:
        return value
    raise SettingError("threads")


def _check_gpu_count(value: Any) -> Any:
    if value == "all" or (type(value) is int and value >= 1):
        return value
    raise SettingError("gpu count")


class CpuDevice(Settings):
    """Device of `train-cpu`."""

    threads: Annotated[int | None, BeforeValidator(_check_threads)] = None
    processes: PositiveInt = 1
    """Processes that train together over gloo, each with `threads` threads."""
    machine: Name | None = None
    """Machine that trains, by its file in machines/. Default: this machine."""
    time_limit: Duration | None = None
    """Time after which an experiment trains no further epoch. Experiments may override it."""


class GpuDevice(Settings):
    """Device of `train-gpu`."""

    kind: KindOrAuto = "auto"
    count: Annotated[int | Literal["all"] | None, BeforeValidator(_check_gpu_count)] = None
    """Number of GPUs. Default: the number of `device_ids`, or 1."""
    if_missing: Literal["skip", "fail"] = "skip"
    machine: Name | None = None
    """Machine that trains, by its file in machines/. Default: this machine."""
    strategy: Strategy = "ddp"
    """One process for each GPU (ddp), or one process for all (data_parallel)."""
    device_ids: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)] | None = None
    """GPUs of data_parallel. The first holds the network. Default: the first `count`."""
    output_device: NonNegativeInt | None = None
    """GPU of data_parallel that gathers the outputs. Default: the first of `device_ids`."""

    @model_validator(mode="after")
    def _check_device_ids(self) -> GpuDevice:
        ids = self.device_ids
        if self.strategy == "ddp" and (ids is not None or self.output_device is not None):
            raise SettingError("ids without data_parallel")
        if ids is not None and self.count not in (None, "all", len(ids)):
            raise SettingError("ids and count", ids=len(ids), count=self.count)
        return self

    @property
    def wanted_count(self) -> int | Literal["all"]:
        return len(self.device_ids) if self.device_ids is not None else self.count or 1


class Devices(Settings):
    """Section `devices`."""

    cpu: CpuDevice = CpuDevice()
    gpu: GpuDevice = GpuDevice()


class BudgetPlan(Settings):
    """Hourly prices of the devices, and the budget: data/plan/budget.json."""

    currency: str
    cpu_hour: NonNegativeFloat | None
    gpu_hour: NonNegativeFloat | None
    budget: PositiveFloat | None
    """Maximum price of one training on one device."""
