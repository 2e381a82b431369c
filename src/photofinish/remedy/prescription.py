"""Which remedy is to be tried, from params.yaml and the results on disk: both must be of the same settings."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from photofinish.comparison.diagnosis import Diagnosis, diagnose
from photofinish.comparison.remedies import Remedy
from photofinish.errors import MistakeError, UserError
from photofinish.hardware.hosts import fingerprint
from photofinish.params.nearest import nearest_name
from photofinish.params.reader import Params, read_params
from photofinish.params.yaml_reader import YamlDocument
from photofinish.results import records
from photofinish.results.records import DeviceLabel


@dataclass(frozen=True)
class Prescription:
    experiment: str
    device: DeviceLabel
    diagnosis: Diagnosis
    remedy: Remedy
    params_file: Path
    results: Path
    total_seconds: float
    """of the job on record"""


def prescribe(experiment: str, device: DeviceLabel, params_file: Path, results: Path) -> Prescription:
    params = read_params(params_file)
    if experiment not in params.experiments:
        nearest = nearest_name(experiment, params.experiments)
        hint = f"; did you mean '{nearest}'?" if nearest else ""
        raise MistakeError(
            f"{params_file} has no experiment '{experiment}', only {', '.join(params.experiments)}{hint}"
        )
    folder = results / experiment / device
    if not (folder / records.LEARNED / records.RECORD).is_file():
        raise UserError(f"{folder} has no results yet to find a remedy by: run `dvc repro` first")
    record = records.read_training(folder / records.LEARNED)
    if isinstance(record, records.Unavailable):
        raise UserError(f"{experiment} was not trained on the {device}, so nothing can be remedied: {record.reason}")
    timings = records.read_record(folder / records.TIMED / records.TIMINGS, records.Timings)
    cpu_host, gpu_host = fingerprint(params.devices)
    is_of_these_devices = timings.host == (cpu_host if device == "cpu" else gpu_host)
    if params.experiments[experiment] != record.experiment or not is_of_these_devices:
        raise UserError(
            f"{folder} is of other settings or another machine than `dvc repro` would use now: run it first"
        )
    diagnoses = diagnose(experiment, record, timings)
    for diagnosis in diagnoses:
        if diagnosis.remedy:
            total_seconds = timings.total_seconds
            return Prescription(experiment, device, diagnosis, diagnosis.remedy, params_file, results, total_seconds)
    told = [f"{diagnosis.sentence} ({diagnosis.cause}); {diagnosis.no_remedy}" for diagnosis in diagnoses]
    raise UserError(f"there is nothing to remedy in {experiment} on the {device}: {'. '.join(told) or 'no diagnosis'}")


def with_line(params_file: Path, remedy: Remedy, copy: Path) -> Params:
    """The settings with the remedy's line in place: written to a copy, in which they are checked like any other."""
    settings: dict[str, Any] = YamlDocument(params_file).value
    block = settings
    *above, key = remedy.key.split(".")
    for name in above:
        block[name] = block.get(name) or {}
        block = block[name]
    block[key] = remedy.value
    copy.write_text(json.dumps(settings, default=str), encoding="utf-8")  # JSON is YAML too
    return read_params(copy)
