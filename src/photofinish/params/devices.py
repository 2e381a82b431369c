"""The settings of devices: what `train-cpu` and `train-gpu` run on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from photofinish.params.base import NonNegativeInt, PositiveInt, Settings, is_whole_number
from photofinish.params.experiment import Experiment
from photofinish.params.mistakes import Mistake

_MOST_THREADS = 1024
Strategy = Literal["ddp", "data_parallel"]


def _check_threads(value: Any) -> Any:
    if value == "auto":
        return None
    if is_whole_number(value) and 1 <= value <= _MOST_THREADS:
        return value
    raise ValueError(f"must be 'auto' (all the cores this process may use) or a count from 1 to {_MOST_THREADS}")


class CpuDevice(Settings):
    threads: Annotated[int | None, BeforeValidator(_check_threads)] = None
    processes: PositiveInt = 1
    """More than one train together over gloo, each with `threads` threads, as several GPUs would."""
    keep_freed_memory: bool = True
    """Memory that a step frees stays in the process for the next one; glibc by itself gives large blocks back."""


def _check_gpu_count(value: Any) -> Any:
    if value == "all" or (is_whole_number(value) and value >= 1):
        return value
    raise ValueError("must be a count of at least 1, or 'all'")


class GpuDevice(Settings):
    kind: Literal["auto", "cuda", "mps", "xpu"] = "auto"
    count: Annotated[int | Literal["all"] | None, BeforeValidator(_check_gpu_count)] = None
    """by default as many as `device_ids` lists, else 1"""
    if_missing: Literal["skip", "fail"] = "skip"
    strategy: Strategy = "ddp"
    """How several GPUs share the work: one process each (ddp), or one process for all (data_parallel)."""
    device_ids: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)] | None = None
    """For data_parallel: which GPUs, the first of them holding the network; by default the first `count`."""
    output_device: NonNegativeInt | None = None
    """For data_parallel: where outputs are gathered and labels lie; by default the first of `device_ids`."""

    @model_validator(mode="after")
    def _device_list_fits(self) -> GpuDevice:
        if self.strategy != "data_parallel":
            if self.device_ids is not None or self.output_device is not None:
                raise ValueError("device_ids and output_device need strategy: data_parallel")
            return self
        if self.device_ids is not None:
            if len(set(self.device_ids)) != len(self.device_ids):
                raise ValueError("device_ids names a GPU twice")
            if self.count not in (None, "all", len(self.device_ids)):
                raise ValueError(f"device_ids names {len(self.device_ids)} GPUs, but count is {self.count}")
        if self.output_device is not None and self.output_device not in self._named_ids():
            raise ValueError(f"output_device {self.output_device} is not one of the GPUs in use")
        return self

    def _named_ids(self) -> tuple[int, ...]:
        """The GPUs that a data_parallel run uses, as far as the file alone tells: `all` may be any."""
        if self.device_ids is not None:
            return self.device_ids
        wanted = self.wanted_count
        return (self.output_device or 0,) if wanted == "all" else tuple(range(wanted))

    @property
    def wanted_count(self) -> int | Literal["all"]:
        if self.device_ids is not None:
            return len(self.device_ids)
        return self.count or 1


class Devices(Settings):
    cpu: CpuDevice = CpuDevice()
    gpu: GpuDevice = GpuDevice()


def misfits(devices: Devices, experiments: Mapping[str, Experiment]) -> Iterator[Mistake]:
    """A batch with less than one image for each device, and a strategy without the kind of device or the precision."""
    yield from _data_parallel_misfits(devices.gpu, experiments)
    gpus = devices.gpu.wanted_count
    wanted = [("devices.cpu.processes", devices.cpu.processes)]
    if gpus != "all":  # how many that are, only the machine knows: checked when the training starts
        wanted.append(("devices.gpu.count", gpus))
    key, most = max(wanted, key=lambda key_and_count: key_and_count[1])
    for name, experiment in experiments.items():
        if experiment.batch_size < most:
            yield Mistake(
                ("experiments", name, "batch_size"),
                f"must be at least {most}: {key} is {most}, and each of them takes a share of every batch",
                experiment.batch_size,
            )


def _data_parallel_misfits(gpu: GpuDevice, experiments: Mapping[str, Experiment]) -> Iterator[Mistake]:
    if gpu.strategy != "data_parallel":
        return
    if gpu.kind in ("mps", "xpu"):
        yield Mistake(
            ("devices", "gpu", "strategy"), f"data_parallel is for cuda, and kind is {gpu.kind}: use ddp", gpu.strategy
        )
    for name, experiment in experiments.items():
        if experiment.precision == "bf16":
            yield Mistake(
                ("experiments", name, "precision"),
                "torch computes in fp16 instead, without a word, where devices.gpu.strategy is data_parallel: "
                "use strategy ddp, which computes in bf16, or precision fp16",
                experiment.precision,
            )
