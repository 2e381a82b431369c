"""Results of experiments and scripts on both devices."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy.typing as npt
import pandas as pd

from photofinish.comparing.step_costs import StepCosts
from photofinish.config.experiment import Experiment, on_cpu
from photofinish.data import TaskName
from photofinish.data.tasks import TASKS
from photofinish.results import EpochMetrics, records
from photofinish.results.job_times import JobTimes, Timings
from photofinish.results.measured import read_trained
from photofinish.results.pass_times import Overhead, StepsTaken
from photofinish.results.records import DeviceLabel
from photofinish.results.script_runs import ScriptRun, ScriptUnavailable


@dataclass(frozen=True)
class Predictions:
    """Predictions and true targets, with a row for each test item, or for each value or label."""

    actual: npt.NDArray[Any]
    predicted: npt.NDArray[Any]


@dataclass(frozen=True)
class TrainingResult:
    """Result of a training stage: one experiment on one device."""

    stage: ClassVar[str] = "train"
    """Prefix of the stage's name in dvc.yaml."""
    has_steps: ClassVar[bool] = True
    experiment: str
    record: records.TrainingRecord
    timings: Timings
    history: Sequence[EpochMetrics]

    @property
    def device(self) -> DeviceLabel:
        return self.record.device

    @property
    def settings(self) -> Experiment:
        return self.record.experiment

    @property
    def wanted_precision(self) -> str:
        """Precision in the settings, which a device without it replaces."""
        return self.settings.precision

    @property
    def sweep(self) -> tuple[str, ...]:
        """Data set and network, which all experiments of a sweep share."""
        return self.settings.dataset, self.settings.model.name

    @property
    def precision(self) -> str | None:
        return self.record.precision

    @property
    def initial_weights_sha256(self) -> str | None:
        return self.record.initial_weights_sha256

    @property
    def epoch_count(self) -> int:
        return self.settings.epochs

    @property
    def is_deterministic(self) -> bool:
        return self.settings.deterministic

    @property
    def stops_early(self) -> bool:
        return self.settings.early_stopping is not None

    @property
    def steps_taken(self) -> StepsTaken | None:
        return self.timings.steps_taken

    @property
    def warm_up_seconds(self) -> float | None:
        return self.timings.warm_up_seconds

    @property
    def overhead(self) -> Overhead | None:
        return self.timings.overhead

    @property
    def shares(self) -> dict[str, float]:
        """Share of each part in an epoch's step, or an empty dict if the parts are not known."""
        return self.costs.shown_shares if self.costs else {}

    @property
    def loading_share(self) -> float:
        """Share of an epoch for loading and copying data, or 0 if that is not known."""
        parts = ("waiting for data", "copying to the device")
        return sum(self.shares.get(part, 0.0) for part in parts)

    @cached_property
    def costs(self) -> StepCosts | None:
        attribution = self.timings.attribution
        return StepCosts(self.settings, self.timings, attribution) if attribution else None


@dataclass(frozen=True)
class Trained(TrainingResult):
    """Result of a training stage, with its evaluation."""

    scores: records.DeviceEvaluation
    first_step: records.FirstStep | None
    predictions: Predictions
    seed_runs: tuple[records.SeedRun, ...] = ()
    no_first_step: str | None = None
    """Reason for a missing first step."""

    @property
    def metrics(self) -> dict[str, float | None]:
        """Custom test metrics by name."""
        return {**self.scores.metrics}

    @property
    def cpu_fallbacks(self) -> dict[str, int]:
        """Number of the first step's calls of each operator that ran on the CPU, not the device."""
        return self.first_step.cpu_fallbacks if self.first_step else {}


@dataclass(frozen=True)
class Sampled(TrainingResult):
    """Sample of a training, of which `photofinish ask` keeps no model."""

    scores: ClassVar[records.DeviceEvaluation | None] = None
    metrics: ClassVar[dict[str, float | None]] = {}
    seed_runs: ClassVar[Sequence[records.SeedRun]] = ()
    cpu_fallbacks: ClassVar[dict[str, int]] = {}


@dataclass(frozen=True)
class ScriptResult:
    """Result of a script on one device."""

    experiment: str
    """Name of the script."""
    record: ScriptRun
    is_outdated: bool = False
    """True if the script was changed since."""
    stage: ClassVar[str] = "script"
    # Only trainings by photofinish have values for these.
    settings: ClassVar[Experiment | None] = None
    scores: ClassVar[records.DeviceEvaluation | None] = None
    costs: ClassVar[StepCosts | None] = None
    history: ClassVar[Sequence[EpochMetrics]] = ()
    seed_runs: ClassVar[Sequence[records.SeedRun]] = ()
    initial_weights_sha256: ClassVar[str | None] = None
    steps_taken: ClassVar[StepsTaken | None] = None
    warm_up_seconds: ClassVar[float | None] = None
    overhead: ClassVar[Overhead | None] = None
    cpu_fallbacks: ClassVar[dict[str, int]] = {}
    is_deterministic: ClassVar[bool] = True
    stops_early: ClassVar[bool] = False

    @property
    def device(self) -> DeviceLabel:
        return self.record.device

    @property
    def timings(self) -> JobTimes:
        return self.record.timings

    @property
    def has_steps(self) -> bool:
        """True if the script uses `photofinish.steps`, False if it is timed as a whole."""
        return bool(self.record.epochs)

    @property
    def sweep(self) -> tuple[str, ...]:
        return (self.experiment,)

    @property
    def wanted_precision(self) -> str:
        return self.record.precision

    @property
    def precision(self) -> str | None:
        """Precision of the counted step."""
        return self.record.precision if self.timings.operations else None

    @property
    def epoch_count(self) -> int:
        return len(self.record.epochs)

    @property
    def metrics(self) -> dict[str, float | None]:
        """Numbers of the script's metrics file."""
        return self.record.metrics

    @property
    def shares(self) -> dict[str, float]:
        return {"waiting for data": self.waiting_share} if self.has_steps else {}

    @property
    def loading_share(self) -> float:
        return self.waiting_share if self.has_steps else 0.0

    @cached_property
    def waiting_seconds(self) -> list[float]:
        """Time that each epoch waited for its batches."""
        return [epoch.exposed_waiting_seconds for epoch in self.record.epochs]

    @property
    def waiting_share(self) -> float:
        """Share of the epochs' time spent waiting for batches."""
        return sum(self.waiting_seconds) / sum(epoch.full_seconds for epoch in self.record.epochs)

    @property
    def batch_seconds(self) -> float:
        """Median wait for a batch."""
        waits = []
        for epoch in self.record.epochs:
            waits.append(epoch.exposed_waiting_seconds / max(1, epoch.steps))
        return statistics.median(waits)


@dataclass(frozen=True)
class NotTrained:
    experiment: str
    record: records.Unavailable | ScriptUnavailable

    @property
    def device(self) -> DeviceLabel:
        return self.record.device


AnyResult = Trained | Sampled | ScriptResult
"""Result of a device that ran."""
DeviceResult = Trained | NotTrained


def read_results(name: str, folder: Path) -> dict[DeviceLabel, DeviceResult]:
    """Read the results of both devices from an experiment's folder."""
    results: dict[DeviceLabel, DeviceResult] = {}
    trained: dict[DeviceLabel, tuple[records.TrainingRecord, tuple[records.SeedRun, ...]]] = {}
    settings: dict[DeviceLabel, Experiment] = {}
    for device in records.DEVICE_LABELS:
        model = folder / device / records.MODEL
        record = records.read_training(model)
        settings[device] = record.experiment
        if isinstance(record, records.Unavailable):
            results[device] = NotTrained(name, record)
        else:
            trained[device] = record, records.read_seeds(model, record.experiment)
    if not trained:
        return results
    if "cpu" in trained:
        cpu, seeds = trained["cpu"]
        trained["cpu"] = _with_settings_of(cpu, settings["gpu"]), seeds
    evaluated, (first, _) = folder / records.EVALUATED, next(iter(trained.values()))
    scores = records.read_scores(evaluated / records.EVALUATION, trained.values())
    predictions = _read_predictions(evaluated / records.PREDICTIONS, list(trained), first.task)
    for device, (record, seeds) in trained.items():
        model = folder / device / records.MODEL
        timings, measured = read_trained(folder / device)
        results[device] = Trained(
            name,
            record,
            timings,
            records.read_history(model),
            scores[device],
            measured.first_step,
            predictions[device],
            seeds,
            measured.no_first_step,
        )
    return results


def _with_settings_of(cpu: records.TrainingRecord, on_gpu: Experiment) -> records.TrainingRecord:
    """Return the CPU's record with the settings that only accelerators read.

    The CPU trains without these settings, but estimates and suggestions start from params.yaml.
    """
    if on_cpu(on_gpu) != cpu.experiment:
        return cpu
    return cpu.model_copy(update={"experiment": on_gpu})


def _read_predictions(
    path: Path, devices: list[DeviceLabel], task: TaskName
) -> dict[DeviceLabel, Predictions]:
    columns = ["actual", *devices]
    table = pd.read_csv(path, usecols=columns, dtype=TASKS[task].predicted_dtype)
    actual = table["actual"].to_numpy()
    return {device: Predictions(actual, table[device].to_numpy()) for device in devices}
