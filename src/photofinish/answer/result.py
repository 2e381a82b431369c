"""Result of a job on one device: its measurements, and the model that it trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy.typing as npt

from photofinish.answer.step_costs import StepCosts
from photofinish.config.experiment import Experiment, LoaderInput, on_cpu
from photofinish.data import TaskName
from photofinish.data.tasks import TASKS
from photofinish.results import EpochMetrics, records
from photofinish.results.job_times import JobTimes, Timings
from photofinish.results.measured import read_trained
from photofinish.results.measured_job import MeasuredJob
from photofinish.results.records import DeviceLabel


@dataclass(frozen=True)
class Predictions:
    """Predictions and true targets, with a row for each test item, or for each value or label."""

    actual: npt.NDArray[Any]
    predicted: npt.NDArray[Any]


@dataclass(frozen=True)
class Trained:
    """Training of an experiment on one device, with its evaluation."""

    experiment: str
    record: records.TrainingRecord
    timings: Timings
    history: Sequence[EpochMetrics]
    scores: records.DeviceEvaluation
    first_step: records.FirstStep | None
    predictions: Predictions
    seed_runs: tuple[records.SeedRun, ...] = ()
    no_first_step: str | None = None

    @property
    def device(self) -> DeviceLabel:
        return self.record.device


@dataclass(frozen=True)
class Result:
    """Facts about a job on one device. A fact that a job can't have is None or empty."""

    experiment: str
    """Name of the experiment or script."""
    device: DeviceLabel
    timings: JobTimes
    precision: str
    parameter_count: int | None
    record: records.TrainingRecord | None = None
    """Settings, data and network. None for a script."""
    trained: Trained | None = None
    """Trained model. None for a script, and if the job was only measured."""
    step_parts_seconds: Mapping[str, float] = field(default_factory=dict)
    """Time of parts of a script's step that were timed alone."""
    compiles: bool = False
    """True if a script compiles its network."""
    loader_workers: int | None = None
    """Number of workers of a script's loader. None without one."""
    step_loading_seconds: float | None = None
    """Most time that these take to load a step's batches. They may hide it behind its computing."""
    between_seconds: float = 0.0
    """Time of a script between two epochs, such as to save a checkpoint."""
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    """Custom test metrics, or numbers of a script's metrics file, by name."""
    is_outdated: bool = False
    """True if the script was changed since."""

    @classmethod
    def of_training(cls, trained: Trained) -> Result:
        return cls(
            trained.experiment,
            trained.device,
            trained.timings,
            trained.record.precision,
            trained.record.parameter_count,
            trained.record,
            trained,
            metrics={**trained.scores.metrics},
        )

    @property
    def settings(self) -> Experiment | None:
        """Settings of the experiment. None for a script."""
        return self.record.experiment if self.record else None

    @property
    def stage(self) -> str:
        """Prefix of the stage's name in dvc.yaml."""
        return "train" if self.record else "script"

    @property
    def loads_itself(self) -> bool:
        """True if the process that trains also loads the batches."""
        source = self.settings.input if self.settings else None
        if self.settings:
            return isinstance(source, LoaderInput) and source.workers == 0
        return not self.loader_workers  # without a loader, too

    @property
    def wanted_precision(self) -> str:
        """Precision in the settings, which a device without it replaces."""
        return self.settings.precision if self.settings else self.precision

    @property
    def sweep(self) -> tuple[str, ...]:
        """Data set and network, which all experiments of a sweep share."""
        settings = self.settings
        return (settings.dataset, settings.model.name) if settings else (self.experiment,)

    @property
    def has_steps(self) -> bool:
        """True if steps were seen, False for a script that is timed as a whole."""
        return all(part.holds != "run" for part in self.timings.parts)

    @property
    def first_step(self) -> records.FirstStep | None:
        """First step of an experiment, as `measure` recorded it."""
        if self.trained:
            return self.trained.first_step
        return self.timings.first_step if isinstance(self.timings, MeasuredJob) else None

    @property
    def history(self) -> Sequence[EpochMetrics]:
        return self.trained.history if self.trained else ()

    @property
    def stops_early(self) -> bool:
        return self.settings is not None and self.settings.early_stopping is not None

    @property
    def shares(self) -> dict[str, float]:
        """Share of each part in an epoch's step, or an empty dict if the parts are not known."""
        apart = dict(self.costs.parts_seconds if self.costs else self.step_parts_seconds)
        if self.device == "gpu" and self.costs:
            return {part: seconds / sum(apart.values()) for part, seconds in apart.items()}
        apart.pop("waiting for data", None)  # the CPU's waits are in its training's parts
        if not self.waiting_seconds:
            return {}
        waiting = {"waiting for data": self.waiting_share}
        computing, step_seconds = 1 - self.waiting_share, self.step_share_seconds
        if not apart or not step_seconds:
            return waiting | {"computing": computing}
        # They were timed in other steps, which may have been slower.
        whole_seconds = max(computing * step_seconds, sum(apart.values()))
        parts = {part: computing * seconds / whole_seconds for part, seconds in apart.items()}
        parts.pop("the rest", None)
        return waiting | parts | {"the rest": max(0.0, computing - sum(parts.values()))}

    @property
    def step_share_seconds(self) -> float | None:
        """Time per step of an epoch, which the shares divide, or None if it is not known."""
        if self.costs:
            return self.costs.epoch_share_seconds
        steps = self.timings.steps_per_epoch
        return self.timings.median_epoch_seconds / steps if steps else None

    @property
    def waiting_seconds(self) -> tuple[float, ...]:
        """Time that an epoch waits for batches by each timed part, or empty if it is not known."""
        by_parts = self.timings.epoch_by_parts
        return by_parts.waiting_seconds if by_parts else ()

    @property
    def waiting_share(self) -> float:
        """Share of the timed parts spent waiting for batches."""
        by_parts = self.timings.epoch_by_parts
        return by_parts.mean_waiting_seconds / by_parts.seconds if by_parts else 0.0

    @property
    def loading_seconds(self) -> float | None:
        """Time to load an epoch's batches: the waits, or what workers hide, with their start.

        Without a trial of these workers, they load as fast as if each had a core. It is None if
        loading was not timed.
        """
        source, loader = self.settings.input if self.settings else None, self.timings.loader
        waited_seconds = self.waiting_share * self.timings.measured_epoch_seconds
        if not (isinstance(source, LoaderInput) and source.workers):
            return waited_seconds
        if loader is None or not self.timings.epoch_steps:
            return None
        own = [each for each in loader.tried_workers if each.workers == source.workers]
        seconds = own[0].batch_seconds if own else loader.whole_seconds / source.workers
        seconds *= self.timings.epoch_steps
        if not source.persistent_workers:
            seconds += loader.start_seconds_by(source.workers)
        return max(waited_seconds, seconds)

    @cached_property
    def costs(self) -> StepCosts | None:
        attribution = self.timings.attribution
        if not attribution or not self.settings:
            return None
        waited_seconds = self.waiting_share * self.timings.measured_epoch_seconds
        a_step = (self.loading_seconds or waited_seconds) / max(1.0, self.timings.epoch_steps or 1)
        if not self.waiting_seconds:
            a_step = attribution.parts.median_seconds["waiting_seconds"]
        return StepCosts(self.settings, self.timings, attribution, a_step)


def read_results(
    name: str, folder: Path
) -> tuple[dict[DeviceLabel, Trained], dict[DeviceLabel, str]]:
    """Read what each device trained from an experiment's folder, or why it did not."""
    read: dict[DeviceLabel, tuple[records.TrainingRecord, tuple[records.SeedRun, ...]]] = {}
    settings: dict[DeviceLabel, Experiment] = {}
    missing: dict[DeviceLabel, str] = {}
    for device in records.DEVICE_LABELS:
        model = folder / device / records.MODEL
        record = records.read_training(model)
        settings[device] = record.experiment
        if isinstance(record, records.Unavailable):
            missing[device] = record.reason
        else:
            read[device] = record, records.read_seeds(model, record.experiment)
    if not read:
        return {}, missing
    if "cpu" in read:
        cpu, seeds = read["cpu"]
        # Estimates and suggestions also need the settings that only accelerators read.
        if on_cpu(settings["gpu"]) == cpu.experiment:
            cpu = cpu.model_copy(update={"experiment": settings["gpu"]})
        read["cpu"] = cpu, seeds
    evaluated, (first, _) = folder / records.EVALUATED, next(iter(read.values()))
    scores = records.read_scores(evaluated / records.EVALUATION, read.values())
    predictions = _read_predictions(evaluated / records.PREDICTIONS, list(read), first.task)
    trained: dict[DeviceLabel, Trained] = {}
    for device, (record, seeds) in read.items():
        timings, measured = read_trained(folder / device)
        trained[device] = Trained(
            name,
            record,
            timings,
            records.read_history(folder / device / records.MODEL),
            scores[device],
            measured.first_step,
            predictions[device],
            seeds,
            measured.no_first_step,
        )
    return trained, missing


def _read_predictions(
    path: Path, devices: list[DeviceLabel], task: TaskName
) -> dict[DeviceLabel, Predictions]:
    import pandas as pd  # no part of an installation for `ask` only

    columns = ["actual", *devices]
    table = pd.read_csv(path, usecols=columns, dtype=TASKS[task].predicted_dtype)
    actual = table["actual"].to_numpy()
    return {device: Predictions(actual, table[device].to_numpy()) for device in devices}
