"""Measurement of one job on one device: measured/measured.json."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, RootModel

from photofinish.config.base import Record
from photofinish.config.experiment import on_cpu, step_settings
from photofinish.config.precisions import Precision
from photofinish.errors import UserError
from photofinish.machine.load import LoadWindow
from photofinish.results import EpochMetrics, records
from photofinish.results.measurements import LoopSteps, StepMeasurements
from photofinish.results.trained import (
    DeviceEvaluation,
    DeviceLabel,
    FirstScriptSteps,
    FirstStep,
    Predictions,
    Readings,
    SeedRun,
    Where,
)

MEASURED_FOLDER, MEASURED = "measured", "measured.json"


class JobLength(Record):
    """Length of a script's whole job, and its source."""

    value: float
    unit: Literal["epochs", "steps"]
    by: str
    """For example `--epochs`, `the trainer`, `params.yaml` or `its whole run`."""


class Stall(Record):
    """Line of a script at which each step on a GPU waits for the host or the device."""

    file: str
    line: int
    what: str
    """Function or operator that reads a value back, or `to` for a copy."""


class ScriptFacts(Record):
    """Command that was watched while it trained."""

    command: str
    files: dict[str, str]
    """SHA-256 of each file that the script depends on, and version of each package."""
    device_kind: str
    """Torch's name of the device."""
    precision: Precision
    """Precision of products on an NVIDIA GPU with the script's PyTorch flags."""
    parameter_count: int | None
    lengths: tuple[JobLength, ...] = ()
    """Lengths of the whole job, the most reliable one first. Empty if none was found."""
    steps: int = 1
    """Number of steps that the command took, with those that are in no part."""
    samples_per_step: float | None = None
    loader_workers: int | None = None
    """Number of workers of the loader. None without one."""
    step_loading_seconds: float | None = None
    """Most time that workers take to load a step's batches, from the first ones and their start."""
    epoch_share: float | None = None
    """Share of its loader's steps that an epoch took. None before an epoch ended."""
    time_limit: float | None = None
    """Seconds after which the command is stopped."""
    first_steps: FirstScriptSteps | None = None
    stalls: tuple[Stall, ...] = ()
    compiles: bool = False
    idle_share: float = 0.0
    """Share of steps at whose end a GPU had hardly anything left to do."""
    step_parts: dict[str, float] = Field(default_factory=dict)
    """Time of a step's forward pass, backward pass and optimizer on the CPU, if it is known."""
    ended: str | None = None
    """Reason why the script failed or was stopped. None if it ended by itself."""
    cuda_at: str = ""
    """Line that asks for a GPU without checking, if cuda meant the CPU in this run."""
    is_bound: bool = False
    """True if no step could be timed in the time that one step took at least."""
    metrics: dict[str, float | None]
    """Numbers in the metrics file. None for NaN and infinity."""

    @property
    def ran_as(self) -> tuple[str, dict[str, str], float | None]:
        """Return what a result depends on. If it changes, the result is outdated."""
        return self.command, self.files, self.time_limit


class Measured(Readings, Where, StepMeasurements):
    """Steps of a job, its start-up and its loader: of an experiment on fresh weights, or a script.

    What a job can't have is None or empty.
    """

    status: Literal["measured"] = "measured"
    job: str
    device: DeviceLabel
    training: records.TrainingRecord | None = None
    """Settings on which an experiment's step depends, data and network, before any training."""
    script: ScriptFacts | None = None
    startup_seconds: float
    """Time from the process's start to the first step, without warm-up and photofinish's checks."""
    startup_cpu_seconds: float | None = None
    """CPU time of the main thread in the start-up."""
    validation_step_seconds: float = 0.0
    """Time of validation for each training step, extrapolated if only a part of it was timed."""
    end_seconds: float = 0.0
    """Time of a script after its last step, if it ended by itself."""
    loop_steps: LoopSteps | None = None
    """Steps of a script on the CPU."""
    first_step: FirstStep | None = None
    no_first_step: str | None = None
    load: tuple[LoadWindow, ...]


@dataclass(frozen=True)
class TrainedRecords:
    experiment: str
    record: records.TrainingRecord
    times: records.TrainingTimes
    steps: StepMeasurements | None
    """Steps, as `measure` measured them. None if they are of another training."""
    measured_load: tuple[LoadWindow, ...] = ()
    history: Sequence[EpochMetrics] = ()
    scores: DeviceEvaluation | None = None
    """None before `evaluate`."""
    first_step: FirstStep | None = None
    predictions: Predictions = field(default_factory=lambda: Predictions(np.empty(0), np.empty(0)))
    seed_runs: tuple[SeedRun, ...] = ()
    no_first_step: str | None = None

    @property
    def device(self) -> DeviceLabel:
        return self.record.device


class NotMeasured(Record):
    """Record of a missing device."""

    status: Literal["missing"] = "missing"
    job: str
    device: DeviceLabel
    reason: str


class _EitherMeasured(RootModel[Annotated[Measured | NotMeasured, Field(discriminator="status")]]):
    """Record of either status."""


def write_measured(folder: Path, measured: Measured | NotMeasured) -> None:
    records.write_record(folder / MEASURED, measured)


def read_measured(path: Path) -> Measured | NotMeasured:
    return records.read_record(path, _EitherMeasured).root


def read_trained(folder: Path) -> tuple[records.TrainingTimes, Measured]:
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
        raise UserError(f"{path} and {times} have different {what}: run `photofinish run {stage}`")
    return trained, measured


def read_records(name: str, folder: Path, training: records.TrainingRecord) -> TrainedRecords:
    """Read what a device's folder has of this training: all but scores and further seeds."""
    times, measured = read_trained(folder)
    return TrainedRecords(
        name,
        training,
        times,
        measured,
        measured.load,
        records.read_history(folder / records.MODEL),
        first_step=measured.first_step,
        no_first_step=measured.no_first_step,
    )


def _stale(training: records.TrainingRecord, measured: Measured) -> str | None:
    """Return what differs between a training and a measurement, or None if they belong together."""
    steps = measured.training
    if steps is None or steps.data_sha256 != training.data_sha256:
        return "data"
    settings, of_steps = (step_settings(record.experiment) for record in (training, steps))
    if training.device == "cpu":
        settings, of_steps = on_cpu(settings), on_cpu(of_steps)
    return "settings" if settings != of_steps else None
