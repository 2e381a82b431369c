"""The fingerprint of the machine: facts that determine speed and bits.

The fingerprint is part of DVC's cache key, so it holds no load, temperature or time. Every `dvc
repro` computes it, so torch is not imported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self

from photofinish.config.base import Record, read_plan
from photofinish.config.devices import CpuDevice, Devices, GpuDevice, Strategy
from photofinish.config.kinds import KindOrAuto
from photofinish.errors import ConfigError, UserError
from photofinish.machine.accelerators import (
    AcceleratorFacts,
    Accelerators,
    accelerators_to_use,
    all_accelerators,
)
from photofinish.machine.host import (
    CpuFacts,
    Software,
    cpu_facts,
    software_facts,
    usable_threads,
)
from photofinish.nested import dotted
from photofinish.wording import did_you_mean


class Machine(Record):
    """Facts of a machine, before any settings: machines/<name>.json."""

    cpu: CpuFacts
    accelerators: Accelerators
    software: Software

    @classmethod
    def here(cls) -> Self:
        return cls(cpu=cpu_facts(), accelerators=all_accelerators(), software=software_facts())


class CpuTarget(Record):
    """Machine that `train-cpu` runs on: data/plan/hosts/cpu.json."""

    processes: int = 1
    threads: int
    """Threads of each process."""
    cpu: CpuFacts
    software: Software


class GpuTarget(Record):
    """Machine that `train-gpu` runs on: data/plan/hosts/gpu.json.

    Without an accelerator, threads, CPU and software are None.
    """

    kind: KindOrAuto
    count: int | Literal["all"]
    """Number of accelerators in use, or the setting if there are too few."""
    strategy: Strategy = "ddp"
    device_ids: tuple[int, ...] | None = None
    output_device: int | None = None
    if_missing: Literal["skip", "fail"]
    accelerators: tuple[AcceleratorFacts, ...]
    missing: str | None
    threads: int | None
    """Threads of each process."""
    cpu: CpuFacts | None
    software: Software | None

    @property
    def processes(self) -> int:
        """Number of processes on one machine. With ddp, each has an accelerator."""
        return len(self.accelerators) if self.strategy == "ddp" and self.accelerators else 1


def fingerprint(
    devices: Devices, machines: Mapping[str, Machine] | None = None
) -> tuple[CpuTarget, GpuTarget]:
    here, machines = Machine.here(), machines or {}
    on_cpu = machines.get(devices.cpu.machine or "", here)
    on_gpu = machines.get(devices.gpu.machine or "", here)
    return _cpu_host(devices.cpu, on_cpu), _gpu_host(devices.gpu, on_gpu)


def _cpu_host(wanted: CpuDevice, machine: Machine) -> CpuTarget:
    software = machine.software.of_cpu()
    threads = usable_threads(machine.cpu, wanted.processes, software.variables)
    return CpuTarget(
        processes=wanted.processes,
        threads=wanted.threads or threads,
        cpu=machine.cpu,
        software=software,
    )


def _gpu_host(wanted: GpuDevice, machine: Machine) -> GpuTarget:
    used, missing = accelerators_to_use(wanted, machine.accelerators)
    settings = wanted.model_dump(
        include={"kind", "strategy", "device_ids", "output_device", "if_missing"}
    )
    processes = max(1, len(used)) if wanted.strategy == "ddp" else 1
    threads = usable_threads(machine.cpu, processes, machine.software.variables)
    return GpuTarget(
        **settings,
        count=len(used) or wanted.wanted_count,
        accelerators=tuple(used),
        missing=missing,
        threads=threads if used else None,
        cpu=machine.cpu if used else None,
        software=machine.software if used else None,
    )


def read_host(device: Literal["cpu", "gpu"], path: Path) -> CpuTarget | GpuTarget:
    return read_plan(path, CpuTarget) if device == "cpu" else read_plan(path, GpuTarget)


def mismatches(planned: CpuTarget | GpuTarget, machine: Machine) -> list[str]:
    own: CpuTarget | GpuTarget
    if isinstance(planned, CpuTarget):
        settings = planned.model_dump(include=set(CpuDevice.model_fields))
        own = _cpu_host(CpuDevice(**settings), machine)
    elif planned.missing:
        return []  # nothing is timed without the device
    else:
        settings = planned.model_dump(include=set(GpuDevice.model_fields))
        own = _gpu_host(GpuDevice(**settings), machine)
    wanted, actual = (dict(dotted(each.model_dump(mode="json"))) for each in (planned, own))
    return [
        f"{key}: {wanted.get(key)}, not {actual.get(key)}"
        for key in wanted | actual
        if wanted.get(key) != actual.get(key)
    ]


def check_machine(title: str, planned: CpuTarget | GpuTarget, remedy: str) -> None:
    """Raise UserError if DVC runs a stage on another machine than the planned one."""
    if "DVC_STAGE" in os.environ and (differences := mismatches(planned, Machine.here())):
        raise UserError(
            f"{title} is planned for another machine than this one "
            f"({'; '.join(differences[:3])}). {remedy}"
        )


def report_missing(title: str, planned: CpuTarget | GpuTarget, reason: str) -> None:
    """Print why a device is missing, unless `plan` did. Raise UserError if it is required."""
    if isinstance(planned, GpuTarget) and planned.if_missing == "fail":
        raise UserError(
            f"{reason} (devices.gpu.if_missing in params.yaml is 'fail'; 'skip' records it)"
        )
    if not (isinstance(planned, GpuTarget) and planned.missing):
        print(f"{title}: skipped, {reason}", file=sys.stderr)


def read_machines(devices: Devices, folder: Path) -> dict[str, Machine]:
    machines = {}
    for device, name in (("cpu", devices.cpu.machine), ("gpu", devices.gpu.machine)):
        if name is None:
            continue
        path = folder / f"{name}.json"
        try:
            machines[name] = Machine.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            known = sorted(file.stem for file in folder.glob("*.json"))
            raise ConfigError(
                f"devices.{device}.machine is {name}, but there is no {path};"
                f"{did_you_mean(name, known)} run `photofinish machine {name}` on that machine, "
                f"and commit {path}"
            ) from None
    return machines
