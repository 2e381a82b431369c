"""Records of runs on other machines, as files in reference/, without the names of hosts and users.

`python -m photofinish.results.references` records this machine's results for others.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import time
from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import model_validator

from photofinish.config.base import Name, Record, is_name
from photofinish.config.experiment import Experiment
from photofinish.errors import ConfigError, UserError, run_stage
from photofinish.files import sha256_of_bytes, to_json, write_text_atomically
from photofinish.machine.host import package_version
from photofinish.machine.load import load_warnings
from photofinish.results import EpochMetrics, records

SCHEMA_VERSION = 1
_SHA256 = "sha256"
_TELLTALE = re.compile(r"[/\\]|GPU-|MIG-")
"""part of a variable's value that names a folder, perhaps with a user's name, or one single GPU"""
_OUTSIDE = re.compile(r"[/\\~]|\.\.[/\\]|([A-Za-z]|file):[/\\]")
"""start of a path outside the project"""


class Reference(Record):
    """One experiment on one device of a machine."""

    schema_version: Literal[1] = 1
    machine: Name
    """name of its folder"""
    experiment: Name
    recorded_at_unix_seconds: float
    photofinish_version: str
    training: records.Training
    timings: records.Timings
    scores: records.DeviceEvaluation
    history: tuple[EpochMetrics, ...]

    @property
    def file_name(self) -> str:
        """Name of the file in its machine's folder."""
        return f"{self.experiment}.{self.training.device}.json"

    @model_validator(mode="after")
    def _is_whole_and_nobodys(self) -> Self:
        if self.timings.host_name:
            raise ValueError("it names the host it was recorded on, which is private")
        if not len(self.history) == len(self.timings.epochs) == self.training.experiment.epochs:
            raise ValueError("it lacks a loss or a time of an epoch of the experiment")
        return self


def write_reference(folder: Path, reference: Reference) -> Path:
    """Write a reference below `folder`, with a sha256 of its content."""
    content = reference.model_dump(mode="json")
    path = folder / reference.machine / reference.file_name
    write_text_atomically(path, to_json({**content, _SHA256: sha256_of_bytes(to_json(content).encode())}))
    return path


def read_references(folder: Path, chosen: Literal["all", "none"] | Iterable[str]) -> list[Reference]:
    """Read the references of the chosen machines; raise UserError if a file was damaged or changed."""
    if chosen == "none" or not folder.is_dir():
        return []
    machines = sorted(path.name for path in folder.iterdir() if path.is_dir())
    names = machines if chosen == "all" else list(chosen)
    unknown = [name for name in names if name not in machines]
    if unknown:
        there_are = ", ".join(machines) or "none"
        raise UserError(f"compare.references names {', '.join(unknown)}; {folder}/ has no such folder ({there_are})")
    return [_read(path) for name in names for path in sorted((folder / name).glob("*.json"))]


def _read(path: Path) -> Reference:
    try:
        content: Any = json.loads(path.read_bytes())
        if not isinstance(content, dict):
            raise ValueError("it is no JSON object")
        version = content.get("schema_version")
        if version != SCHEMA_VERSION:
            raise ValueError(f"its schema_version is {version!r}, and this photofinish reads {SCHEMA_VERSION}")
        if content.pop(_SHA256, None) != sha256_of_bytes(to_json(content).encode()):
            raise ValueError("its sha256 is not that of its content: it was damaged or changed")
        reference = Reference.model_validate_json(json.dumps(content))
        if path.parts[-2:] != (reference.machine, reference.file_name):
            raise ValueError(f"it belongs in {reference.machine}/{reference.file_name}")
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} is not a reference that can be read: {error}. Remove it, or set compare.references in params.yaml"
        ) from error
    return reference


def hardware(device: records.DeviceLabel, timings: records.Timings) -> str:
    """Describe the hardware that trained: `2 x NVIDIA H100`, `Some CPU, 4 threads`."""
    host, name = timings.host, timings.device_name
    if device == "cpu":
        threads = f"{host.threads or 1} thread{'' if host.threads == 1 else 's'}"
        return f"{name}, {f'{host.processes} processes of ' if host.processes > 1 else ''}{threads}"
    count = timings.device_count
    return f"{f'{count} x ' if count > 1 else ''}{name}"


def record_all(plan: Path, results: Path, out: Path, machine: str | None, *, from_elsewhere: bool = False) -> None:
    """Record every result that was measured here in one go; print why others are left out."""
    if machine is not None and not is_name(machine):
        raise ConfigError(f"--machine {machine}: a name is 1 to 64 letters, digits, '-' and '_'")
    names = sorted(path.stem for path in plan.glob("*.json"))
    if not names:
        raise UserError(f"{plan} has no experiments: run `dvc repro` first")
    written = 0
    for name, device in product(names, records.DEVICE_LABELS):
        learned, timed = (results / name / device / part for part in (records.MODEL, records.TIMINGS_FOLDER))
        training = records.read_training(learned)
        if isinstance(training, records.Unavailable):
            continue
        timings = records.read_record(timed / records.TIMINGS, records.Timings)
        if timings.host_name != platform.node() and not from_elsewhere:
            outcome = "not recorded: it was measured on another machine: record it there"
        elif timings.resumed_at_epochs:
            outcome = "not recorded: the training was interrupted and resumed"
        else:
            seeds = records.read_seeds(learned, training.experiment)
            judged = records.read_scores(results / name / records.EVALUATED / records.EVALUATION, [(training, seeds)])
            reference = reference_of(name, training, timings, judged[device], records.read_history(learned), machine)
            busy = "".join(f"; to be taken with care: {doubt}" for doubt in load_warnings(timings.load))
            outcome = f"{write_reference(out, reference)}{busy}"
            written += 1
        print(f"{name} on {device}: {outcome}")
    if not written:
        raise UserError("nothing was recorded")
    print(f"Recorded {written}. Check them before you share them: see {out}/README.md")


def reference_of(
    name: str,
    training: records.Training,
    timings: records.Timings,
    scores: records.DeviceEvaluation,
    history: Iterable[EpochMetrics],
    machine: str | None = None,
) -> Reference:
    """Return a result without the host's name, folders outside the project, and numbers of single GPUs.

    By default the machine has the name of its hardware: `NVIDIA H100 80GB HBM3` is nvidia-h100-80gb-hbm3.
    """
    experiment = to_json(without_folders(training.experiment.model_dump(mode="json")))
    settings = Experiment.model_validate_json(experiment)
    training = training.model_copy(update={"experiment": settings, "custom_code": nobodys_code(training.custom_code)})
    host, described = timings.host, hardware(training.device, timings).lower()
    named = "-".join(re.findall(r"[a-z0-9.]+", re.sub(r"\((r|tm)\)", " ", described))).replace(".", "_")
    if software := host.software:
        variables = {key: "(set)" if _TELLTALE.search(value) else value for key, value in software.variables.items()}
        host = host.model_copy(update={"software": replace(software, variables=variables)})
    return Reference(
        machine=machine or named[:64].rstrip("-_"),
        experiment=name,
        recorded_at_unix_seconds=time.time(),
        photofinish_version=package_version("photofinish") or "unknown",
        training=training,
        timings=timings.model_copy(update={"host_name": "", "host": host}),
        scores=scores,
        history=tuple(history),
    )


def without_folders(settings: Any) -> Any:
    """Cut the folders from paths outside the project: they may hold a user's name."""
    if isinstance(settings, dict):
        return {key: without_folders(value) for key, value in settings.items()}
    if isinstance(settings, list | tuple):
        return [without_folders(value) for value in settings]
    if not isinstance(settings, str) or not _OUTSIDE.match(os.path.normpath(settings)):
        return settings
    return re.split(r"[/\\]", settings)[-1]


def nobodys_code(custom_code: dict[str, str]) -> dict[str, str]:
    """Return the code by names in the project, and files outside by their sha256 alone."""
    return {sha256 if without_folders(name) != name else name: sha256 for name, sha256 in custom_code.items()}


def main() -> None:
    """Record this machine's results, as the command line asks."""
    parser = argparse.ArgumentParser(prog="python -m photofinish.results.references", description=__doc__)
    parser.add_argument("--plan", type=Path, default=Path("data/plan/experiments"))
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--out", type=Path, default=Path("reference"))
    parser.add_argument("--machine", help="the folder's name; by default the hardware's")
    args = parser.parse_args()
    record_all(args.plan, args.results, args.out, args.machine)


if __name__ == "__main__":
    run_stage(main)
