"""The fingerprint of the machine: what determines speed and bits, and stays the same from run to run.

It is part of DVC's cache key, so it holds no load, temperature or time. Torch is not imported: what the fingerprint
is made of is looked at in each `dvc repro`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict

from photofinish.machine.accelerators import AcceleratorFacts, Accelerators, accelerators_to_use, all_accelerators
from photofinish.machine.cpu import CpuFacts, cpu_facts, usable_threads
from photofinish.machine.software import CPU_VARIABLES, GPU_VARIABLES, Software, software_facts
from photofinish.params.devices import CpuDevice, Devices, GpuDevice, Strategy, check_data_parallel


class Host(BaseModel):
    """Its rules hold for the plain dataclasses inside it, too."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class Machine(Host):
    """machines/<name>.json: what of a machine determines speed and bits, whatever it is asked to do."""

    cpu: CpuFacts
    accelerators: Accelerators
    software: Software

    @classmethod
    def here(cls) -> Self:
        """This machine."""
        return cls(cpu=cpu_facts(), accelerators=all_accelerators(), software=software_facts(GPU_VARIABLES))


class CpuHost(Host):
    """data/plan/hosts/cpu.json: what `train-cpu` runs on."""

    nodes: int = 1
    """machines like this one that train together"""
    processes: int = 1
    """on each of them"""
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
    nodes: int = 1
    """machines like this one that train together, each with as many"""
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
        """How many train together on one machine, each on its own accelerator."""
        return len(self.accelerators) if self.strategy == "ddp" and self.accelerators else 1


def fingerprint(devices: Devices, machines: Mapping[str, Machine] | None = None) -> tuple[CpuHost, GpuHost]:
    """What each device runs on: this machine, after one look at it, or the one of `machines` that the device names."""
    here = Machine.here()
    machines = machines or {}
    on_cpu, on_gpu = (machines.get(name, here) if name else here for name in (devices.cpu.machine, devices.gpu.machine))
    return _cpu_host(devices.cpu, on_cpu), _gpu_host(devices.gpu, on_gpu)


def _cpu_host(wanted: CpuDevice, machine: Machine) -> CpuHost:
    software = machine.software.with_only(CPU_VARIABLES)
    return CpuHost(
        nodes=wanted.nodes,
        processes=wanted.processes,
        threads=wanted.threads or usable_threads(machine.cpu, wanted.processes, software.variables),
        keep_freed_memory=wanted.keep_freed_memory,
        cpu=machine.cpu,
        software=software,
    )


def _gpu_host(wanted: GpuDevice, machine: Machine) -> GpuHost:
    used, missing = accelerators_to_use(wanted, machine.accelerators)
    if wanted.strategy == "data_parallel" and used:
        check_data_parallel(used[0].kind, wanted.device_ids or range(len(used)), wanted.output_device)
    processes = len(used) if wanted.strategy == "ddp" else 1
    return GpuHost(
        kind=wanted.kind,
        count=len(used) or wanted.wanted_count,
        nodes=wanted.nodes if used else 1,
        strategy=wanted.strategy,
        device_ids=wanted.device_ids,
        output_device=wanted.output_device,
        if_missing=wanted.if_missing,
        accelerators=tuple(used),
        missing=missing,
        threads=usable_threads(machine.cpu, processes, machine.software.variables) if used else None,
        cpu=machine.cpu if used else None,
        software=machine.software if used else None,
    )


def differences(planned: CpuHost | GpuHost, machine: Machine) -> list[str]:
    """In what `machine` is another one than this was planned for, as far as it matters to the device."""
    if isinstance(planned, CpuHost):
        wanted = CpuDevice(**planned.model_dump(include=set(CpuDevice.model_fields)))
        own: CpuHost | GpuHost = _cpu_host(wanted, machine)
    elif planned.missing:
        return []  # nothing will be timed, wherever that is found
    else:
        own = _gpu_host(GpuDevice(**planned.model_dump(include=set(GpuDevice.model_fields))), machine)
    there, here = _leaves(planned.model_dump(mode="json")), _leaves(own.model_dump(mode="json"))
    return [
        f"{key}: {there.get(key)}, not {here.get(key)}" for key in {**there, **here} if there.get(key) != here.get(key)
    ]


def _leaves(facts: dict[str, Any], path: str = "") -> dict[str, Any]:
    """Each single fact by its path."""
    found: dict[str, Any] = {}
    for key, value in facts.items():
        found |= _leaves(value, f"{path}{key}.") if isinstance(value, dict) else {f"{path}{key}": value}
    return found
