"""Settings of the devices that `train-cpu` and `train-gpu` run on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from photofinish.config.base import Name, NonNegativeInt, PositiveInt, Settings, is_whole_number, refusal
from photofinish.config.experiment import Experiment
from photofinish.config.mistakes import ConfigProblem
from photofinish.errors import ConfigError

_MOST_THREADS = 1024
Strategy = Literal["ddp", "data_parallel"]


def _check_threads(value: Any) -> Any:
    if value == "auto":
        return None
    if is_whole_number(value) and 1 <= value <= _MOST_THREADS:
        return value
    raise refusal(value, f"'auto' (all the cores this process may use) or a count from 1 to {_MOST_THREADS}")


class CpuDevice(Settings):
    """Device of `train-cpu`."""

    threads: Annotated[int | None, BeforeValidator(_check_threads)] = None
    processes: PositiveInt = 1
    """Processes that train together over gloo, each with `threads` threads."""
    machine: Name | None = None
    """Machine, by its file in machines/, whose result this is. By default this one."""


def _check_gpu_count(value: Any) -> Any:
    if value == "all" or (is_whole_number(value) and value >= 1):
        return value
    raise refusal(value, "'all', or a count of at least 1")


class GpuDevice(Settings):
    """Device of `train-gpu`."""

    kind: Literal["auto", "cuda", "mps", "xpu"] = "auto"
    count: Annotated[int | Literal["all"] | None, BeforeValidator(_check_gpu_count)] = None
    """By default the number of `device_ids`, or 1."""
    if_missing: Literal["skip", "fail"] = "skip"
    machine: Name | None = None
    """Machine, by its file in machines/, whose result this is. By default this one."""
    strategy: Strategy = "ddp"
    """One process for each GPU (ddp), or one process for all (data_parallel)."""
    device_ids: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)] | None = None
    """GPUs of data_parallel; the first holds the network. By default the first `count`."""
    output_device: NonNegativeInt | None = None
    """GPU of data_parallel that gathers the outputs. By default the first of `device_ids`."""

    @model_validator(mode="after")
    def _check_device_ids(self) -> GpuDevice:
        if self.strategy != "data_parallel" and (self.device_ids is not None or self.output_device is not None):
            raise ValueError("device_ids and output_device need strategy: data_parallel")
        if self.device_ids is not None:
            if len(set(self.device_ids)) != len(self.device_ids):
                raise ValueError("device_ids names a GPU twice")
            if self.count not in (None, "all", len(self.device_ids)):
                raise ValueError(f"device_ids names {len(self.device_ids)} GPUs, but count is {self.count}")
        return self

    @property
    def wanted_count(self) -> int | Literal["all"]:
        """Return the number of GPUs that are asked for."""
        return len(self.device_ids) if self.device_ids is not None else self.count or 1


class Devices(Settings):
    """Section `devices`."""

    cpu: CpuDevice = CpuDevice()
    gpu: GpuDevice = GpuDevice()


def check_devices(devices: Devices, experiments: Mapping[str, Experiment]) -> Iterator[ConfigProblem]:
    """Yield experiments that do not fit the devices, as far as params.yaml alone shows."""
    gpu = devices.gpu
    counts = {sharing_key("cpu"): devices.cpu.processes}
    if gpu.wanted_count != "all":  # only the machine can count all: checked when the training starts
        counts[sharing_key("gpu")] = gpu.wanted_count
    key = max(counts, key=lambda key: counts[key])
    for name, experiment in experiments.items():
        if problem := batch_problem(experiment.batch_size, counts[key], key):
            yield ConfigProblem(("experiments", name, "batch_size"), problem, experiment.batch_size)
        if gpu.strategy == "data_parallel" and experiment.precision == "bf16":
            yield ConfigProblem(
                ("experiments", name, "precision"),
                "with devices.gpu.strategy: data_parallel, torch silently computes in fp16: "
                "use strategy ddp or precision fp16",
                experiment.precision,
            )
    if gpu.strategy == "data_parallel":
        in_use = gpu.device_ids or (range(gpu.wanted_count) if gpu.wanted_count != "all" else None)
        yield from _data_parallel_mistakes(gpu.kind, in_use, gpu.output_device)


def sharing_key(device: str) -> str:
    """Return the key of params.yaml that says how many processes share a batch."""
    return {"cpu": "devices.cpu.processes", "gpu": "devices.gpu.count"}[device]


def batch_problem(batch_size: int, sharing: int, key: str) -> str | None:
    """Return why the batch cannot be shared, or None if it can."""
    if batch_size >= sharing:
        return None
    return f"{sharing} devices or processes share each batch ({key}): raise the one or lower the other"


def check_data_parallel(kind: str, in_use: Sequence[int], output_device: int | None) -> None:
    """Raise MistakeError if data_parallel cannot use the GPUs of this machine."""
    for mistake in _data_parallel_mistakes(kind, in_use, output_device):
        key = ".".join(map(str, mistake.path))
        raise ConfigError(f"{key} in params.yaml is {mistake.value}: {mistake.problem}")


def _data_parallel_mistakes(
    kind: str, in_use: Sequence[int] | None, output_device: int | None
) -> Iterator[ConfigProblem]:
    where = ("devices", "gpu")
    if kind not in ("auto", "cuda"):
        problem = f"this is for cuda, and the accelerator here is {kind}: set devices.gpu.strategy to ddp"
        yield ConfigProblem((*where, "strategy"), problem, "data_parallel")
    if in_use is not None and output_device is not None and output_device not in in_use:
        gpus = ", ".join(map(str, in_use))
        yield ConfigProblem((*where, "output_device"), f"must be one of the GPUs in use: {gpus}", output_device)
