"""The fingerprint of the machine: facts that determine speed and bits, and stay the same from run to run.

It is part of DVC's cache key, so it holds no load, temperature or time. Every `dvc repro` makes it, so torch is not
imported. Other machines have theirs in machines/<name>.json, which `python -m photofinish.machine.fingerprint`
printed there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import ValidationError

from photofinish.config.base import Record
from photofinish.config.devices import CpuDevice, Devices, GpuDevice, Strategy, check_data_parallel
from photofinish.config.problems import ConfigProblem, unknown_name
from photofinish.errors import ConfigError, run_stage
from photofinish.machine.accelerators import (
    AcceleratorFacts,
    Accelerators,
    accelerators_to_use,
    all_accelerators,
)
from photofinish.machine.host import (
    CPU_VARIABLES,
    CpuFacts,
    Software,
    cpu_facts,
    software_facts,
    usable_threads,
)

if TYPE_CHECKING:
    from photofinish.config.loader import Params


class Machine(Record):
    """machines/<name>.json: facts of a machine that determine speed and bits, before any settings."""

    cpu: CpuFacts
    accelerators: Accelerators
    software: Software

    @classmethod
    def here(cls) -> Self:
        """Return this machine."""
        return cls(cpu=cpu_facts(), accelerators=all_accelerators(), software=software_facts())


class CpuTarget(Record):
    """data/plan/hosts/cpu.json: the machine that `train-cpu` runs on."""

    processes: int = 1
    """number of processes that train together"""
    threads: int
    """per process"""
    cpu: CpuFacts
    software: Software


class GpuTarget(Record):
    """data/plan/hosts/gpu.json: the machine that `train-gpu` runs on. Without an accelerator, it has no CPU."""

    kind: Literal["auto", "cuda", "mps", "xpu"]
    count: int | Literal["all"]
    """number of accelerators in use, or as in the settings if there are too few"""
    strategy: Strategy = "ddp"
    device_ids: tuple[int, ...] | None = None
    output_device: int | None = None
    if_missing: Literal["skip", "fail"]
    accelerators: tuple[AcceleratorFacts, ...]
    """in use"""
    missing: str | None
    threads: int | None
    """per process"""
    cpu: CpuFacts | None
    software: Software | None

    @property
    def processes(self) -> int:
        """Number of processes on one machine, each with its own accelerator."""
        return len(self.accelerators) if self.strategy == "ddp" and self.accelerators else 1


def fingerprint(
    devices: Devices, machines: Mapping[str, Machine] | None = None
) -> tuple[CpuTarget, GpuTarget]:
    """Return the host of each device: this machine, or the one of `machines` that the device names."""
    here = Machine.here()
    machines = machines or {}
    on_cpu, on_gpu = (
        machines.get(name, here) if name else here
        for name in (devices.cpu.machine, devices.gpu.machine)
    )
    return _cpu_host(devices.cpu, on_cpu), _gpu_host(devices.gpu, on_gpu)


def _cpu_host(wanted: CpuDevice, machine: Machine) -> CpuTarget:
    software = machine.software.with_only(CPU_VARIABLES)
    return CpuTarget(
        processes=wanted.processes,
        threads=wanted.threads or usable_threads(machine.cpu, wanted.processes, software.variables),
        cpu=machine.cpu,
        software=software,
    )


def _gpu_host(wanted: GpuDevice, machine: Machine) -> GpuTarget:
    used, missing = accelerators_to_use(wanted, machine.accelerators)
    if wanted.strategy == "data_parallel" and used:
        check_data_parallel(
            used[0].kind, wanted.device_ids or range(len(used)), wanted.output_device
        )
    processes = len(used) if wanted.strategy == "ddp" else 1
    return GpuTarget(
        kind=wanted.kind,
        count=len(used) or wanted.wanted_count,
        strategy=wanted.strategy,
        device_ids=wanted.device_ids,
        output_device=wanted.output_device,
        if_missing=wanted.if_missing,
        accelerators=tuple(used),
        missing=missing,
        threads=usable_threads(machine.cpu, processes, machine.software.variables)
        if used
        else None,
        cpu=machine.cpu if used else None,
        software=machine.software if used else None,
    )


def mismatches(planned: CpuTarget | GpuTarget, machine: Machine) -> list[str]:
    """Return the facts in which `machine` differs from the planned one, if they matter to the device."""
    if isinstance(planned, CpuTarget):
        wanted = CpuDevice(**planned.model_dump(include=set(CpuDevice.model_fields)))
        own: CpuTarget | GpuTarget = _cpu_host(wanted, machine)
    elif planned.missing:
        return []  # nothing will be timed
    else:
        own = _gpu_host(
            GpuDevice(**planned.model_dump(include=set(GpuDevice.model_fields))), machine
        )
    wanted_facts, own_facts = (
        _leaves(planned.model_dump(mode="json")),
        _leaves(own.model_dump(mode="json")),
    )
    found = []
    for key in {**wanted_facts, **own_facts}:
        if wanted_facts.get(key) != own_facts.get(key):
            found.append(f"{key}: {wanted_facts.get(key)}, not {own_facts.get(key)}")
    return found


def _leaves(facts: dict[str, Any], path: str = "") -> dict[str, Any]:
    """Return each single fact by its path."""
    found: dict[str, Any] = {}
    for key, value in facts.items():
        found |= (
            _leaves(value, f"{path}{key}.") if isinstance(value, dict) else {f"{path}{key}": value}
        )
    return found


def read_machines(devices: Devices, folder: Path) -> dict[str, Machine]:
    """Return the machines that `devices` name."""
    machines = {}
    for name in filter(None, (devices.cpu.machine, devices.gpu.machine)):
        path = folder / f"{name}.json"
        try:
            machines[name] = Machine.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            problem = str(error).partition("\n")[0]
            raise ConfigError(
                f"{path} can't be read as a machine ({problem}): write it again there, with `make machine NAME={name}`"
            ) from error
    return machines


def unknown_machines(params: Params, folder: Path) -> Iterator[ConfigProblem]:
    """Yield the names in params.yaml that have no file in machines/."""
    for device, name in (("cpu", params.devices.cpu.machine), ("gpu", params.devices.gpu.machine)):
        if problem := name and name_problem(name, folder):
            yield ConfigProblem(("devices", device, "machine"), problem, name)


def name_problem(name: str, folder: Path) -> str | None:
    """Return why no machine has this name, or None if one has."""
    known = sorted(path.stem for path in folder.glob("*.json"))
    if name in known:
        return None
    how = f"`make machine NAME={name}` on it writes {folder}/{name}.json, to be committed"
    return (
        f"{unknown_name('machine', name, known)}; {how}"
        if known
        else f"{folder}/ has no machine yet: {how}"
    )


def main() -> None:
    """Print this machine's facts."""
    print(Machine.here().model_dump_json(indent=2))


if __name__ == "__main__":
    run_stage(main)
