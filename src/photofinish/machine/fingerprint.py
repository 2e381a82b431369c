"""The fingerprint of the machine: what determines speed and bits, and stays the same from run to run.

It is part of DVC's cache key, so it holds no load, temperature or time. Torch is not imported: what the fingerprint
is made of is looked at in each `dvc repro`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from photofinish.machine.accelerators import AcceleratorFacts, accelerators_to_use, all_accelerators
from photofinish.machine.cpu import CpuFacts, cpu_facts, usable_threads
from photofinish.machine.software import CPU_VARIABLES, GPU_VARIABLES, Software, software_facts
from photofinish.params.devices import Devices, Strategy, check_data_parallel


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
        """How many train together, each on its own accelerator."""
        return len(self.accelerators) if self.strategy == "ddp" and self.accelerators else 1


def fingerprint(devices: Devices) -> tuple[CpuHost, GpuHost]:
    """What each device runs on, after one look at this machine."""
    cpu, wanted = cpu_facts(), devices.gpu
    used, missing = accelerators_to_use(wanted, all_accelerators())
    if wanted.strategy == "data_parallel" and used:
        check_data_parallel(used[0].kind, wanted.device_ids or range(len(used)), wanted.output_device)
    cpu_host = CpuHost(
        processes=devices.cpu.processes,
        threads=devices.cpu.threads or usable_threads(cpu, devices.cpu.processes),
        keep_freed_memory=devices.cpu.keep_freed_memory,
        cpu=cpu,
        software=software_facts(CPU_VARIABLES),
    )
    gpu_host = GpuHost(
        kind=wanted.kind,
        count=len(used) or wanted.wanted_count,
        strategy=wanted.strategy,
        device_ids=wanted.device_ids,
        output_device=wanted.output_device,
        if_missing=wanted.if_missing,
        accelerators=tuple(used),
        missing=missing,
        threads=usable_threads(cpu, len(used) if wanted.strategy == "ddp" else 1) if used else None,
        cpu=cpu if used else None,
        software=software_facts(GPU_VARIABLES) if used else None,
    )
    return cpu_host, gpu_host
