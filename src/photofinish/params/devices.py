"""The settings of devices: what `train-cpu` and `train-gpu` run on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from photofinish.errors import MistakeError
from photofinish.params.base import Name, NonNegativeInt, PositiveInt, Settings, is_whole_number, refusal
from photofinish.params.experiment import Experiment
from photofinish.params.mistakes import Mistake

_MOST_THREADS = 1024
Strategy = Literal["ddp", "data_parallel"]


def _check_threads(value: Any) -> Any:
    if value == "auto":
        return None
    if is_whole_number(value) and 1 <= value <= _MOST_THREADS:
        return value
    raise refusal(value, f"'auto' (all the cores this process may use) or a count from 1 to {_MOST_THREADS}")


class CpuDevice(Settings):
    """What `train-cpu` runs on."""

    threads: Annotated[int | None, BeforeValidator(_check_threads)] = None
    processes: PositiveInt = 1
    """More than one train together over gloo, each with `threads` threads, as several GPUs would."""
    nodes: PositiveInt = 1
    """More than one: so many machines that are alike train together, each with as many processes."""
    keep_freed_memory: bool = True
    """Memory that a step frees stays in the process for the next one; glibc by itself gives large blocks back."""
    machine: Name | None = None
    """whose result this is, by its file in machines/; by default this one's"""


def _check_gpu_count(value: Any) -> Any:
    if value == "all" or (is_whole_number(value) and value >= 1):
        return value
    raise refusal(value, "'all', or a count of at least 1")


class GpuDevice(Settings):
    """What `train-gpu` runs on."""

    kind: Literal["auto", "cuda", "mps", "xpu"] = "auto"
    count: Annotated[int | Literal["all"] | None, BeforeValidator(_check_gpu_count)] = None
    """by default as many as `device_ids` lists, else 1"""
    nodes: PositiveInt = 1
    """as of the CPU, each with `count` GPUs"""
    if_missing: Literal["skip", "fail"] = "skip"
    machine: Name | None = None
    """as of the CPU"""
    strategy: Strategy = "ddp"
    """How several GPUs share the work: one process each (ddp), or one process for all (data_parallel)."""
    device_ids: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)] | None = None
    """For data_parallel: which GPUs, the first of them holding the network; by default the first `count`."""
    output_device: NonNegativeInt | None = None
    """For data_parallel: where outputs are gathered and labels lie; by default the first of `device_ids`."""

    @model_validator(mode="after")
    def _device_list_fits(self) -> GpuDevice:
        if self.strategy != "data_parallel" and (self.device_ids is not None or self.output_device is not None):
            raise ValueError("device_ids and output_device need strategy: data_parallel")
        if self.strategy == "data_parallel" and self.nodes > 1:
            raise ValueError("one process has all GPUs of data_parallel, so nodes must be 1; or use strategy: ddp")
        if self.device_ids is not None:
            if len(set(self.device_ids)) != len(self.device_ids):
                raise ValueError("device_ids names a GPU twice")
            if self.count not in (None, "all", len(self.device_ids)):
                raise ValueError(f"device_ids names {len(self.device_ids)} GPUs, but count is {self.count}")
        return self

    @property
    def wanted_count(self) -> int | Literal["all"]:
        """How many GPUs are asked for; `all` may be any."""
        return len(self.device_ids) if self.device_ids is not None else self.count or 1


class Devices(Settings):
    """The section `devices`."""

    cpu: CpuDevice = CpuDevice()
    gpu: GpuDevice = GpuDevice()


def misfits(devices: Devices, experiments: Mapping[str, Experiment]) -> Iterator[Mistake]:
    """What devices and experiments ask of each other in vain, as far as params.yaml alone tells."""
    gpu = devices.gpu
    sharing = [(sharing_key("cpu", devices.cpu.nodes), devices.cpu.processes * devices.cpu.nodes)]
    if gpu.wanted_count != "all":  # how many that are, only the machine knows: checked when the training starts
        sharing.append((sharing_key("gpu", gpu.nodes), gpu.wanted_count * gpu.nodes))
    key, count = max(sharing, key=lambda key_and_count: key_and_count[1])
    for name, experiment in experiments.items():
        if problem := batch_problem(experiment.batch_size, count, key):
            yield Mistake(("experiments", name, "batch_size"), problem, experiment.batch_size)
        if gpu.strategy == "data_parallel" and experiment.precision == "bf16":
            yield Mistake(
                ("experiments", name, "precision"),
                "torch computes in fp16 instead, without a word, where devices.gpu.strategy is data_parallel: "
                "use strategy ddp, which computes in bf16, or precision fp16",
                experiment.precision,
            )
    if gpu.strategy == "data_parallel":
        in_use = gpu.device_ids or (range(gpu.wanted_count) if gpu.wanted_count != "all" else None)
        yield from _data_parallel_mistakes(gpu.kind, in_use, gpu.output_device)


def sharing_key(device: str, nodes: int) -> str:
    """What of params.yaml tells how many share a batch."""
    key = {"cpu": "devices.cpu.processes", "gpu": "devices.gpu.count"}[device]
    return key if nodes == 1 else f"{key} on each of {nodes} nodes"


def batch_problem(batch_size: int, sharing: int, key: str) -> str | None:
    """Why a batch is too small for all that share it, of which `key` tells the number."""
    if batch_size >= sharing:
        return None
    return f"{sharing} devices or processes share each batch ({key}): raise the one or lower the other"


def check_data_parallel(kind: str, in_use: Sequence[int], output_device: int | None) -> None:
    """Refuse what data_parallel can't do, once the machine has told what `auto` stands for and which GPUs `all` are."""
    for mistake in _data_parallel_mistakes(kind, in_use, output_device):
        key = ".".join(map(str, mistake.path))
        raise MistakeError(f"{key} in params.yaml is {mistake.value}: {mistake.problem}")


def _data_parallel_mistakes(kind: str, in_use: Sequence[int] | None, output_device: int | None) -> Iterator[Mistake]:
    where = ("devices", "gpu")
    if kind not in ("auto", "cuda"):
        problem = f"this is for cuda, and the accelerator here is {kind}: set devices.gpu.strategy to ddp"
        yield Mistake((*where, "strategy"), problem, "data_parallel")
    if in_use is not None and output_device is not None and output_device not in in_use:
        gpus = ", ".join(map(str, in_use))
        yield Mistake((*where, "output_device"), f"must be one of the GPUs in use: {gpus}", output_device)
