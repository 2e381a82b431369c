"""Machines by their names: machines/<name>.json is what `python -m photofinish.machine.machines` printed there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from photofinish.errors import MistakeError, run_stage
from photofinish.machine.fingerprint import Machine
from photofinish.params.devices import Devices
from photofinish.params.mistakes import Mistake, unknown_name
from photofinish.params.reader import Params


def read_machines(devices: Devices, folder: Path) -> dict[str, Machine]:
    """Those that `devices` name."""
    return {name: read_machine(name, folder) for name in (devices.cpu.machine, devices.gpu.machine) if name}


def read_machine(name: str, folder: Path) -> Machine:
    """The one of this name, as it was written there."""
    path = folder / f"{name}.json"
    try:
        return Machine.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        problem = str(error).partition("\n")[0]
        raise MistakeError(
            f"{path} can't be read as a machine ({problem}): write it anew there, with `make machine NAME={name}`"
        ) from error


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
