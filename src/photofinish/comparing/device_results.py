"""Results of experiments and scripts on both devices, with the costs of their steps."""

from __future__ import annotations

import io
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from photofinish.config.experiment import Experiment, on_cpu
from photofinish.data import TaskName
from photofinish.data.tasks import TASKS
from photofinish.errors import UserError
from photofinish.results import EpochMetrics, records
from photofinish.results.job_times import JobTimes
from photofinish.results.measurements import Overhead, StepAttribution, StepsTaken
from photofinish.results.records import DeviceLabel
from photofinish.results.script_runs import ScriptRun, ScriptUnavailable

PARTS = {
    "waiting for data": "waiting_seconds",
    "copying to the device": "copying_seconds",
    "forward": "forward_seconds",
    "backward": "backward_seconds",
    "optimizer": "optimizer_seconds",
    "the rest": "rest_seconds",
}
"""Parts of a step in their order, with their names in the record."""
_HIDDEN_SHARE = 0.8
"""Launching that takes a smaller share of a step is hidden behind the device's work.

A small batch may then wait for the host while the training's batch does not, so no line goes
through the two."""


@dataclass(frozen=True)
class StepCosts:
    """Seconds per step, as medians; or as means over an epoch where the first step differs."""

    experiment: Experiment
    timings: records.Timings
    attribution: StepAttribution

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.timings.training_image_count // self.experiment.batch_size)

    @property
    def loads_ahead(self) -> bool:
        """True if worker processes load the next batches during a step."""
        return self.experiment.input.name == "loader" and self.experiment.input.workers > 0

    @property
    def epoch_share_seconds(self) -> float:
        return self.timings.median_epoch_seconds / self.steps_per_epoch

    @cached_property
    def epoch_share_spread(self) -> tuple[float, float]:
        """`epoch_share_seconds` of a fast and of a slow epoch."""
        return spread([seconds / self.steps_per_epoch for seconds in self.timings.epoch_seconds])

    @cached_property
    def parts_seconds(self) -> dict[str, float]:
        parts = self.attribution.parts
        return {name: self._over_an_epoch(getattr(parts, field)) for name, field in PARTS.items()}

    @property
    def shares(self) -> dict[str, float]:
        whole_seconds = sum(self.parts_seconds.values())
        return {part: seconds / whole_seconds for part, seconds in self.parts_seconds.items()}

    @property
    def shown_shares(self) -> dict[str, float]:
        """Shares of the parts, or nothing if these don't fit the whole."""
        return self.shares if self.timings.step_parts else {}

    @property
    def copying_seconds(self) -> float:
        return self.parts_seconds["copying to the device"]

    @cached_property
    def batch_alone_seconds(self) -> float:
        """Seconds for a batch if no step runs in between."""
        alone_seconds = self._over_an_epoch(self.attribution.batch_alone_seconds)
        if self.loads_ahead:
            return alone_seconds
        # Both passes do the same work. Other load only slows one down, so the faster one counts.
        return min(alone_seconds, self.parts_seconds["waiting for data"])

    @property
    def input_seconds(self) -> float:
        """Seconds per step of an epoch whose steps take no time."""
        if self.loads_ahead:
            return max(self.batch_alone_seconds, self.copying_seconds)
        return self.batch_alone_seconds + self.copying_seconds

    @cached_property
    def step_alone_seconds(self) -> float:
        """Steady-state seconds of a step whose batch is on the device."""
        return statistics.median(self.timings.steady_state.step_seconds)

    @property
    def busy_share(self) -> float:
        """Share of an epoch that the device needs for its steps.

        An upper bound for accelerators, which also wait for the host within a step.
        """
        return min(1.0, self.step_alone_seconds / self.epoch_share_seconds)

    @property
    def beside_step_seconds(self) -> float:
        """Seconds that a step of an epoch waits for its data."""
        return max(0.0, self.epoch_share_seconds - self.step_alone_seconds)

    @cached_property
    def fixed_seconds(self) -> float:
        """Seconds of a step that do not depend on its number of samples.

        Taken from the fastest steps, because other load only slows steps down.
        """
        seconds = min(self.attribution.same_batch.step_seconds)
        launch_seconds = self.attribution.launch_seconds  # of an accelerator
        if launch_seconds and min(launch_seconds) < _HIDDEN_SHARE * seconds:
            return 0.0
        samples = min(self.experiment.batch_size, self.timings.training_image_count)
        other_seconds = min(self.attribution.other_batch.step_seconds)
        other_samples = self.attribution.other_batch_images
        return self.step_alone_seconds * fixed_share(samples, seconds, other_samples, other_seconds)

    def _over_an_epoch(self, values: Sequence[float]) -> float:
        return over_an_epoch(values, self.steps_per_epoch, are_uneven=self.loads_ahead)


def fixed_share(samples: int, seconds: float, other_samples: int, other_seconds: float) -> float:
    """Return the share of a step that would be left with no samples.

    Extrapolates the line through two batch sizes.
    """
    if samples == other_samples:
        return 0.0
    sample_seconds = (seconds - other_seconds) / (samples - other_samples)
    return min(1.0, max(0.0, 1 - samples * sample_seconds / seconds))


def spread(values: Sequence[float]) -> tuple[float, float]:
    low, high = np.quantile(values, [0.1, 0.9])
    return float(low), float(high)


def over_an_epoch(values: Sequence[float], steps: int, are_uneven: bool) -> float:
    """Return the mean over an epoch, whose first step is the first value.

    The other steps count by their median. If they are uneven by design, as batches of several
    workers are, they count by their mean.
    """
    first, *others = values
    if not others:
        return first
    other = statistics.fmean(others) if are_uneven else statistics.median(others)
    return other + (first - other) / steps


@dataclass(frozen=True)
class Predictions:
    """Predictions and truth, a row for each test item, or for each of its values or labels."""

    actual: npt.NDArray[Any]
    predicted: npt.NDArray[Any]


@dataclass(frozen=True)
class TrainingResult:
    """Result of a training stage: one experiment on one device."""

    stage: ClassVar[str] = "train"
    """Start of the stage's name in dvc.yaml."""
    has_steps: ClassVar[bool] = True
    experiment: str
    record: records.TrainingRecord
    timings: records.Timings
    history: Sequence[EpochMetrics]

    @property
    def device(self) -> DeviceLabel:
        return self.record.device

    @property
    def sweep(self) -> tuple[str, ...]:
        """Data set and network, which experiments of one sweep share."""
        return self.record.experiment.dataset, self.record.experiment.model.name

    @property
    def precision(self) -> str | None:
        return self.record.precision

    @property
    def initial_weights_sha256(self) -> str | None:
        return self.record.initial_weights_sha256

    @property
    def epoch_count(self) -> int:
        return self.record.experiment.epochs

    @property
    def is_deterministic(self) -> bool:
        return self.record.experiment.deterministic

    @property
    def stops_early(self) -> bool:
        return self.record.experiment.early_stopping is not None

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
        """Share of each part of an epoch's step, as far as the parts are known."""
        return self.costs.shown_shares if self.costs else {}

    @property
    def loading_share(self) -> float:
        """Share of an epoch that goes into its data, 0 if that is not known."""
        parts = ("waiting for data", "copying to the device")
        return sum(self.shares.get(part, 0.0) for part in parts)

    @cached_property
    def costs(self) -> StepCosts | None:
        attribution = self.timings.attribution
        return StepCosts(self.record.experiment, self.timings, attribution) if attribution else None


@dataclass(frozen=True)
class Trained(TrainingResult):
    """Result of a training stage that was evaluated, too."""

    scores: records.DeviceEvaluation
    first_step: records.FirstStep
    predictions: Predictions
    seed_runs: tuple[records.SeedRun, ...] = ()

    @property
    def metrics(self) -> dict[str, float | None]:
        """Custom test metrics by name."""
        return {**self.scores.metrics}

    @property
    def cpu_fallbacks(self) -> dict[str, int]:
        """Number of times that the CPU ran an operator of the first step for the device."""
        return self.first_step.cpu_fallbacks


@dataclass(frozen=True)
class Sampled(TrainingResult):
    """Sample of a training, of which `photofinish ask` keeps no model."""

    scores: ClassVar[records.DeviceEvaluation | None] = None
    metrics: ClassVar[dict[str, float | None]] = {}
    seed_runs: ClassVar[Sequence[records.SeedRun]] = ()
    cpu_fallbacks: ClassVar[dict[str, int]] = {}


@dataclass(frozen=True)
class ScriptResult:
    """A script that ran on one device."""

    experiment: str
    """Name of the script."""
    record: ScriptRun
    stage: ClassVar[str] = "script"
    # What only trainings by photofinish have.
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
        """True if the script uses `photofinish.steps`. Else it is timed as a whole."""
        return bool(self.record.epochs)

    @property
    def sweep(self) -> tuple[str, ...]:
        return (self.experiment,)

    @property
    def precision(self) -> str | None:
        """Precision of the counted step."""
        return self.record.experiment.precision if self.timings.operations else None

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
        """Time in which each epoch waited for its batches."""
        return [epoch.exposed_waiting_seconds for epoch in self.record.epochs]

    @property
    def waiting_share(self) -> float:
        """Share of its epochs that waited for batches."""
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
    for device in records.DEVICE_LABELS:
        model = folder / device / records.MODEL
        record = records.read_training(model)
        if isinstance(record, records.Unavailable):
            results[device] = NotTrained(name, record)
        else:
            trained[device] = record, records.read_seeds(model, record.experiment)
    if not trained:
        return results
    if "cpu" in trained:
        cpu, seeds = trained["cpu"]
        gpu = trained["gpu"][0] if "gpu" in trained else results["gpu"].record
        if isinstance(gpu, records.TrainingRecord | records.Unavailable):
            trained["cpu"] = _with_settings_of(cpu, gpu.experiment), seeds
    evaluated, (first, _) = folder / records.EVALUATED, next(iter(trained.values()))
    scores = records.read_scores(evaluated / records.EVALUATION, trained.values())
    predictions = _read_predictions(evaluated / records.PREDICTIONS, list(trained), first.task)
    for device, (record, seeds) in trained.items():
        model = folder / device / records.MODEL
        timings = folder / device / records.TIMINGS_FOLDER / records.TIMINGS
        results[device] = Trained(
            name,
            record,
            records.read_record(timings, records.Timings),
            records.read_history(model),
            scores[device],
            records.read_record(model / records.FIRST_STEP, records.FirstStep),
            predictions[device],
            seeds,
        )
    return results


def _with_settings_of(cpu: records.TrainingRecord, on_gpu: Experiment) -> records.TrainingRecord:
    """Return the CPU's record with the settings that only accelerators read.

    The CPU trains without them, but estimates and suggestions begin with what params.yaml has.
    """
    if on_cpu(on_gpu) != cpu.experiment:
        return cpu
    return cpu.model_copy(update={"experiment": on_gpu})


def _read_predictions(
    path: Path, devices: list[DeviceLabel], task: TaskName
) -> dict[DeviceLabel, Predictions]:
    try:
        content = io.BytesIO(path.read_bytes())
        table = pd.read_csv(
            content, usecols=["actual", *devices], dtype=TASKS[task].predicted_dtype
        )
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} is not a table of predictions that can be read: run `dvc repro` ({error})"
        ) from error
    actual = table["actual"].to_numpy()
    return {device: Predictions(actual, table[device].to_numpy()) for device in devices}
