"""Measurement of one job on one device: measured/measured.json."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, RootModel

from photofinish.config.base import Record
from photofinish.config.experiment import on_cpu, step_settings
from photofinish.errors import UserError
from photofinish.machine.load import LoadWindow
from photofinish.results import records
from photofinish.results.job_times import Timings
from photofinish.results.measurements import StepMeasurements
from photofinish.results.pass_times import StepsTaken, Where

MEASURED_FOLDER, MEASURED = "measured", "measured.json"


class Measured(Where, StepMeasurements):
    """Steps of a job, its start-up, its loader and its first step, on fresh weights."""

    status: Literal["measured"] = "measured"
    job: str
    device: records.DeviceLabel
    training: records.TrainingRecord
    """Settings on which a step depends, data and network, before any training."""
    startup_seconds: float
    """Time from the process's start to the first step, without warm-up and photofinish's checks."""
    startup_cpu_seconds: float
    """CPU time of the main thread in the start-up."""
    data_seconds: float
    warm_up_seconds: float
    steps_taken: StepsTaken
    validation_seconds: float
    """Time of an epoch's validation pass, extrapolated if there was time for a part of it."""
    first_step: records.FirstStep | None
    no_first_step: str | None = None
    """Reason for a missing first step."""
    peak_memory_bytes: int | None
    load: tuple[LoadWindow, ...]


class NotMeasured(Record):
    """Record of a missing device."""

    status: Literal["missing"] = "missing"
    job: str
    device: records.DeviceLabel
    reason: str


class _EitherMeasured(RootModel[Annotated[Measured | NotMeasured, Field(discriminator="status")]]):
    """Record of either status."""


def write_measured(folder: Path, measured: Measured | NotMeasured) -> None:
    """Write the record of a folder `measured`."""
    records.write_record(folder / MEASURED, measured)


def read_measured(path: Path) -> Measured | NotMeasured:
    """Read measured.json."""
    return records.read_record(path, _EitherMeasured).root


def read_trained(folder: Path) -> tuple[Timings, Measured]:
    """Read the times of a device's folder, with what `measure` measured of the same job.

    Raise UserError if its measurement is missing, or of other data or settings.
    """
    times = folder / records.TIMINGS_FOLDER / records.TIMINGS
    trained = records.read_record(times, records.TrainingTimes)
    path = folder / MEASURED_FOLDER / MEASURED
    stage = f"measure-{folder.name}@{folder.parent.name}"
    if not path.is_file():
        raise UserError(f"{path} is missing: `photofinish run {stage}` writes it")
    measured = read_measured(path)
    if isinstance(measured, NotMeasured):
        raise UserError(
            f"{path}: {measured.reason}. But {times} exists: run "
            f"`photofinish run --force --single-item {stage}`"
        )
    training = records.read_training(folder / records.MODEL)
    if isinstance(training, records.TrainingRecord) and (what := _stale(training, measured)):
        raise UserError(f"{path} is of other {what} than {times}: run `photofinish run {stage}`")
    return with_measured(trained, measured), measured


def _stale(training: records.TrainingRecord, measured: Measured) -> str | None:
    """Return what differs between a training and a measurement, or None if they belong together."""
    if measured.training.data_sha256 != training.data_sha256:
        return "data"
    settings, of_steps = (step_settings(each.experiment) for each in (training, measured.training))
    if training.device == "cpu":
        settings, of_steps = on_cpu(settings), on_cpu(of_steps)
    return "settings" if settings != of_steps else None


def with_measured(trained: records.TrainingTimes, measured: Measured) -> Timings:
    """Return the times of a training with the measurements of its steps."""
    fields = {name: getattr(trained, name) for name in records.TrainingTimes.model_fields}
    fields |= {name: getattr(measured, name) for name in StepMeasurements.model_fields}
    return Timings(**fields, measured_load=measured.load)
