"""Records of runs on other machines, as files in reference/, without names of hosts and users."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from photofinish.config.base import Name, Record, is_name
from photofinish.config.experiment import Experiment
from photofinish.errors import ConfigError, UserError
from photofinish.files import to_json
from photofinish.machine.host import package_version
from photofinish.machine.load import LoadWindow, load_warnings
from photofinish.results import EpochMetrics, records
from photofinish.results.measured import TrainedRecords, read_trained, with_history
from photofinish.results.measurements import StepMeasurements
from photofinish.results.trained import (
    DEVICE_LABELS,
    DeviceEvaluation,
    DeviceLabel,
    FirstStep,
    Where,
)
from photofinish.wording import counted

_PRIVATE = re.compile(r"[/\\]|GPU-|MIG-")
"""Pattern of an environment variable's value that contains a folder or a GPU's identifier."""
_OUTSIDE = re.compile(r"[/\\~]|\.\.[/\\]|([A-Za-z]|file):[/\\]")
"""Pattern of the start of a path outside the project."""


class RecordedTimes(records.TrainingTimes, StepMeasurements):
    """Times of a training, and of its steps as `measure` measured them."""

    measured_load: tuple[LoadWindow, ...]


class Reference(Record):
    schema_version: Literal[1] = 1
    machine: Name
    """Name of the machine, and of its folder."""
    experiment: Name
    photofinish_version: str
    training: records.TrainingRecord
    timings: RecordedTimes
    scores: DeviceEvaluation
    history: tuple[EpochMetrics, ...]
    first_step: FirstStep | None
    """None if it was not measured."""


def write_reference(folder: Path, reference: Reference) -> Path:
    name = f"{reference.experiment}.{reference.training.device}.json"
    path = folder / reference.machine / name
    records.write_record(path, reference)
    return path


def read_references(
    folder: Path, chosen: Literal["all", "none"] | Iterable[str]
) -> list[Reference]:
    """Read the records of these machines. One of another version is left out with a line."""
    if chosen == "none" or not folder.is_dir():
        return []
    machines = sorted(path.name for path in folder.iterdir() if path.is_dir())
    names = machines if chosen == "all" else list(chosen)
    if unknown := [name for name in names if name not in machines]:
        raise UserError(
            f"compare.references names {', '.join(unknown)}; "
            f"{folder}/ has no such folder ({', '.join(machines) or 'none'})"
        )
    references = []
    for path in (path for name in names for path in sorted((folder / name).glob("*.json"))):
        try:
            references.append(Reference.model_validate_json(path.read_bytes()))
        except ValidationError:
            print(
                f"{path} can't be read by this version, so it is left out. "
                f"`photofinish reference` on its machine records it again.",
                file=sys.stderr,
            )
    return references


def hardware(device: DeviceLabel, where: Where) -> str:
    """Describe the hardware that trained: `2 x NVIDIA H100`, `Some CPU, 4 threads`."""
    host, name, count = where.host, where.device_name, where.device_count
    if device == "gpu":
        return f"{count} x {name}" if count > 1 else name
    processes = f"{host.processes} processes of " if host.processes > 1 else ""
    return f"{name}, {processes}{counted(host.threads or 1, 'thread')}"


def record_all(plan: Path, results: Path, out: Path, machine: str | None) -> None:
    """Record every result that was measured on this machine, and print why others are left out."""
    if machine is not None and not is_name(machine):
        raise ConfigError(f"--machine {machine}: a name is 1 to 64 letters, digits, '-' and '_'")
    names = sorted(path.stem for path in plan.glob("*.json"))
    if not names and plan.parent.is_dir():
        raise UserError(f"{plan} has no experiments, and scripts are not recorded")
    if not names:
        raise UserError(f"{plan} has no experiments: run `dvc repro` first")
    written = 0
    for name, device in product(names, DEVICE_LABELS):
        folder = results / name / device
        if not folder.is_dir():  # `photofinish run train-gpu` leaves no folder for the CPU
            continue
        training = records.read_training(folder / records.MODEL)
        if isinstance(training, records.Unavailable):
            continue
        times, measured = read_trained(folder)
        if times.host_name != platform.node():
            print(f"{name} on {device}: not recorded, as it was measured on another machine")
            continue
        if times.resumed_at_epochs:
            print(f"{name} on {device}: not recorded, as the training was interrupted and resumed")
            continue
        seeds = records.read_seeds(folder / records.MODEL, training.experiment)
        evaluation = results / name / records.EVALUATED / records.EVALUATION
        read = with_history(name, folder, training, times, measured)
        scores = records.read_scores(evaluation, [(training, seeds)])[device]
        path = write_reference(out, reference_of(replace(read, scores=scores), machine))
        written += 1
        print("; ".join([f"{name} on {device}: {path}", *load_warnings(times.load)]))
    if not written:
        raise UserError("nothing was recorded")
    print(f"Recorded {written}. Check them before you share them: see {out}/README.md")


def reference_of(read: TrainedRecords, machine: str | None = None) -> Reference:
    """Return a reference without host name, folders outside the project, and GPUs' identifiers.

    By default the machine is named after its hardware: nvidia-h100-80gb-hbm3.
    """
    assert read.steps
    assert read.scores
    training, times, steps = read.record, read.times, read.steps
    settings = without_folders(training.experiment.model_dump(mode="json"))
    experiment = Experiment.model_validate_json(to_json(settings))
    custom_code = code_without_folders(training.custom_code)
    host = times.host
    if host.software:
        variables = {
            key: "(set)" if _PRIVATE.search(value) else value
            for key, value in host.software.variables.items()
        }
        software = replace(host.software, variables=variables)
        host = host.model_copy(update={"software": software})
    name_of_hardware = re.sub(r"\((r|tm)\)", "", hardware(training.device, times).lower())
    words = re.findall(r"[a-z0-9]+", name_of_hardware)
    return Reference(
        machine=machine or "-".join(words)[:64].rstrip("-"),
        experiment=read.experiment,
        photofinish_version=package_version("photofinish") or "unknown",
        training=training.model_copy(update={"experiment": experiment, "custom_code": custom_code}),
        timings=RecordedTimes(
            **dict(times) | {"host_name": "", "host": host},
            **steps.own_fields(),
            measured_load=read.measured_load,
        ),
        scores=read.scores,
        history=tuple(read.history),
        first_step=read.first_step,
    )


def without_folders(settings: Any) -> Any:
    """Cut the folders from paths outside the project, as they may contain a user's name."""
    if isinstance(settings, dict):
        return {key: without_folders(value) for key, value in settings.items()}
    if isinstance(settings, list | tuple):
        return [without_folders(value) for value in settings]
    if isinstance(settings, str) and _OUTSIDE.match(os.path.normpath(settings)):
        return re.split(r"[/\\]", settings)[-1]
    return settings


def code_without_folders(custom_code: dict[str, str]) -> dict[str, str]:
    """Return custom code by name, but files outside the project by their sha256 only."""
    return {
        sha256 if without_folders(name) != name else name: sha256
        for name, sha256 in custom_code.items()
    }
