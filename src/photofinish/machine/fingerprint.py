"""The fingerprint of the machine: what determines speed and bits, and stays the same from run to run.

It is part of DVC's cache key, so it holds no load, temperature or time. Torch is not imported: what the fingerprint
is made of is looked at in each `dvc repro`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from photofinish.errors import MistakeError
from photofinish.machine.accelerators import AcceleratorFacts, Accelerators, accelerators_to_use, all_accelerators
from photofinish.machine.cpu import CpuFacts, cpu_facts, usable_threads
from photofinish.machine.software import CPU_VARIABLES, GPU_VARIABLES, Software, software_facts
from photofinish.params.devices import CpuDevice, Devices, GpuDevice, Strategy


class Host(BaseModel):
    """Its rules hold for the plain dataclasses inside it, too."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class CpuHost(Host):
    """data/plan/hosts/cpu.json: what `train-cpu` runs on."""

    processes: int = 1
    threads: int
    """of each process"""
    keep_freed_memory: bool = True
    """whether the allocator was told to"""
    cpu: CpuFacts
    software: Software


class GpuHost(Host):
    """data/plan/hosts/gpu.json: what `train-gpu` runs on. Without an accelerator the CPU doesn't matter to it."""

    kind: Literal["auto", "cuda", "mps", "xpu"]
    count: int | Literal["all"]
    """as many as are used; as asked for where that can't be had"""
    strategy: Strategy = "ddp"
    device_ids: tuple[int, ...] | None = None
    output_device: int | None = None
    if_missing: Literal["skip", "fail"]
    accelerators: tuple[AcceleratorFacts, ...]
    """those that are used"""
    missing: str | None
    threads: int | None
    """of each process"""
    cpu: CpuFacts | None
    software: Software | None

    @property
    def processes(self) -> int:
        return len(self.accelerators) if self.strategy == "ddp" and self.accelerators else 1


def fingerprint(devices: Devices, accelerators: Accelerators | None = None) -> tuple[CpuHost, GpuHost]:
    """With what was seen of the accelerators before, or after a look at them."""
    cpu = cpu_facts()
    return _cpu_host(devices.cpu, cpu), _gpu_host(devices.gpu, cpu, accelerators or all_accelerators())


def _cpu_host(settings: CpuDevice, cpu: CpuFacts) -> CpuHost:
    return CpuHost(
        processes=settings.processes,
        threads=settings.threads or usable_threads(cpu, settings.processes),
        keep_freed_memory=settings.keep_freed_memory,
        cpu=cpu,
        software=software_facts(CPU_VARIABLES),
    )


def _gpu_host(settings: GpuDevice, cpu: CpuFacts, accelerators: Accelerators) -> GpuHost:
    used, missing = accelerators_to_use(settings, accelerators)
    if settings.strategy == "data_parallel" and used:
        _refuse_data_parallel(settings, used)
    processes = len(used) if settings.strategy == "ddp" else 1
    return GpuHost(
        kind=settings.kind,
        count=len(used) or settings.wanted_count,
        strategy=settings.strategy,
        device_ids=settings.device_ids,
        output_device=settings.output_device,
        if_missing=settings.if_missing,
        accelerators=tuple(used),
        missing=missing,
        threads=usable_threads(cpu, processes) if used else None,
        cpu=cpu if used else None,
        software=software_facts(GPU_VARIABLES) if used else None,
    )


def _refuse_data_parallel(settings: GpuDevice, used: list[AcceleratorFacts]) -> None:
    """What params.yaml alone can't tell: which kind `auto` stands for, and how many GPUs `all` are."""
    kind, output = used[0].kind, settings.output_device
    if kind != "cuda":
        raise MistakeError(
            f"devices.gpu.strategy data_parallel is for cuda, and the accelerator here is {kind}: "
            f"set devices.gpu.strategy to ddp in params.yaml"
        )
    indices = settings.device_ids or range(len(used))
    if output is not None and output not in indices:
        raise MistakeError(
            f"devices.gpu.output_device in params.yaml is {output}, which is not among the GPUs in use: "
            f"{', '.join(map(str, indices))}"
        )
