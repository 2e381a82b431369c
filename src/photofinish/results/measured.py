"""Measurement of one job on one device: measured/measured.json, and an epoch by its timed parts."""

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
from photofinish.results import EpochMetrics, TimedPart, records
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


_SLOWER = 1.1
"""Factor, by hand, by which a first epoch is slower if its excess is to count once.

If it were less, chance would shorten all other epochs.
"""
LATER_PARTS = 3
"""Minimum number of later parts, by hand, to see whether the first epoch is slower."""


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


def with_history(
    name: str,
    folder: Path,
    training: records.TrainingRecord,
    times: records.TrainingTimes,
    measured: Measured,
) -> TrainedRecords:
    """Return what a device's folder has of this training: all but scores and further seeds."""
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


@dataclass(frozen=True)
class EpochByParts:
    """Time of an epoch's training pass, if all its steps are like the parts."""

    seconds: float
    values: tuple[float, ...]
    """Time of an epoch by each part."""
    waiting_seconds: tuple[float, ...]
    """Time of waits in an epoch by each part, or empty if that is not known."""
    once_seconds: float
    """Time that only the first epoch takes, for example to fill a cache."""
    between_seconds: float = 0.0
    """Time at an epoch's start beside its steps and waits, for example to save a checkpoint."""
    mean_waiting_seconds: float = 0.0
    """Time of waits in an epoch."""


def epoch_by_parts(parts: Sequence[TimedPart], epoch_steps: float) -> EpochByParts:
    """Return the time of an epoch: its start, and its steps at their mean speed."""
    slow, usual = slow_and_usual(parts)
    if usual[0].holds == "run":
        return EpochByParts(usual[0].seconds, (usual[0].seconds,), (), 0.0)
    step_seconds, step_wait = step_of(usual), wait_of(usual)
    once_seconds = epoch_steps * (step_of(slow) - step_seconds) if slow else 0.0
    # If the first epoch's excess counts once, its start is in it.
    first = min(part.epoch for part in usual)
    starts = [part for part in parts if part.holds == "start" and part.epoch >= first]
    start_seconds = _excess([part.seconds - part.steps * step_seconds for part in starts])
    seconds = start_seconds + epoch_steps * step_seconds
    values = tuple(start_seconds + epoch_steps * step_of([part]) for part in usual)
    if step_wait is None:
        return EpochByParts(seconds, values, (), once_seconds)
    start_wait = _excess(
        [(part.waiting_seconds or 0.0) - part.steps * step_wait for part in starts]
    )
    waits = tuple(start_wait + epoch_steps * (wait_of([part]) or 0.0) for part in usual)
    between_seconds = max(0.0, start_seconds - start_wait)
    mean_wait = start_wait + epoch_steps * step_wait
    return EpochByParts(seconds, values, waits, once_seconds, between_seconds, mean_wait)


def slow_and_usual(parts: Sequence[TimedPart]) -> tuple[list[TimedPart], list[TimedPart]]:
    """Return the first epoch's parts if its steps are slower, and the usual parts.

    Starts of epochs are left out, unless there is nothing else.
    """
    steady = [part for part in parts if part.holds != "start"] or list(parts)
    first = [part for part in steady if part.epoch == 0]
    later = [part for part in steady if part.epoch > 0]
    if first and len(later) >= LATER_PARTS and step_of(first) > _SLOWER * step_of(later):
        return first, later
    return [], steady


def step_of(parts: Sequence[TimedPart]) -> float:
    """Return the mean time of a step."""
    return sum(part.seconds for part in parts) / sum(part.steps for part in parts)


def wait_of(parts: Sequence[TimedPart]) -> float | None:
    """Return the mean wait of a step, or None if a part's isn't known."""
    waits = [part.waiting_seconds for part in parts if part.waiting_seconds is not None]
    if len(waits) < len(parts):
        return None
    return sum(waits) / sum(part.steps for part in parts)


def _excess(seconds: Sequence[float]) -> float:
    """Return the mean time of a start in excess of its steps."""
    return max(0.0, sum(seconds) / len(seconds)) if seconds else 0.0
