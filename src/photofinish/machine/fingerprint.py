"""The fingerprint of the machine: what determines speed and bits, and stays the same from run to run.

It is part of DVC's cache key, so it holds no load, temperature or time. Torch is not imported: what the fingerprint
is made of is looked at in each `dvc repro`. Other machines have theirs in machines/<name>.json, which
`python -m photofinish.machine.fingerprint` printed there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import ValidationError

from photofinish.errors import MistakeError, run_stage
from photofinish.machine.accelerators import AcceleratorFacts, Accelerators, accelerators_to_use, all_accelerators
from photofinish.machine.host import CPU_VARIABLES, CpuFacts, Software, cpu_facts, software_facts, usable_threads
from photofinish.params.base import Record
from photofinish.params.devices import CpuDevice, Devices, GpuDevice, Strategy, check_data_parallel
from photofinish.params.mistakes import Mistake, unknown_name

if TYPE_CHECKING:
    from photofinish.params.reader import Params


class Machine(Record):
    """machines/<name>.json: what of a machine determines speed and bits, whatever it is asked to do."""

    cpu: CpuFacts
    accelerators: Accelerators
    software: Software

    @classmethod
    def here(cls) -> Self:
        """This machine."""
        return cls(cpu=cpu_facts(), accelerators=all_accelerators(), software=software_facts())


class CpuHost(Record):
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


class GpuHost(Record):
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


def read_machines(devices: Devices, folder: Path) -> dict[str, Machine]:
    """Those that `devices` name."""
    machines = {}
    for name in filter(None, (devices.cpu.machine, devices.gpu.machine)):
        path = folder / f"{name}.json"
        try:
            machines[name] = Machine.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            problem = str(error).partition("\n")[0]
            raise MistakeError(
                f"{path} can't be read as a machine ({problem}): write it anew there, with `make machine NAME={name}`"
            ) from error
    return machines


def unknown_machines(params: Params, folder: Path) -> Iterator[Mistake]:
    """Names in params.yaml that no file in machines/ has."""
    for device, name in (("cpu", params.devices.cpu.machine), ("gpu", params.devices.gpu.machine)):
        if problem := name and name_problem(name, folder):
            yield Mistake(("devices", device, "machine"), problem, name)


def name_problem(name: str, folder: Path) -> str | None:
    """Why no machine has this name."""
    known = sorted(path.stem for path in folder.glob("*.json"))
    if name in known:
        return None
    how = f"`make machine NAME={name}` on it writes {folder}/{name}.json, to be committed"
    return f"{unknown_name('machine', name, known)}; {how}" if known else f"{folder}/ has no machine yet: {how}"


def main() -> None:
    """Print what this machine is."""
    print(Machine.here().model_dump_json(indent=2))


if __name__ == "__main__":
    run_stage(main)
