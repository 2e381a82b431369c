"""What each device left of an experiment, read from results/: its training, what a step of it cost, and what its model
made of test items."""

from __future__ import annotations

import io
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy.typing as npt
import pandas as pd

from photofinish.config.experiment import Experiment
from photofinish.data import Task
from photofinish.errors import UserError
from photofinish.results import EpochMetrics, records
from photofinish.results.measurements import StepBreakdown
from photofinish.results.records import DeviceLabel

PARTS = {
    "waiting for data": "waiting_seconds",
    "copying to the device": "copying_seconds",
    "forward": "forward_seconds",
    "backward": "backward_seconds",
    "optimiser": "optimizer_seconds",
    "the rest": "rest_seconds",
}
"""of a step, in their order: in words, and in the record"""
_HIDDEN_SHARE = 0.8
"""A host that hands out a step in less of the step's time is clearly ahead of the device. Then the step on few images
may wait for the host, and the one on the batch doesn't: no line goes through the two."""


@dataclass(frozen=True)
class StepCosts:
    """What an epoch is made of, all in seconds a step: medians, or means over an epoch where its first step is like no
    other."""

    experiment: Experiment
    timings: records.Timings
    attribution: StepBreakdown

    @property
    def steps_per_epoch(self) -> int:
        """The last of them may be smaller."""
        return -(-self.timings.training_image_count // self.experiment.batch_size)

    @property
    def loads_ahead(self) -> bool:
        """Worker processes load the next batches during a step."""
        return self.experiment.input.name == "loader" and self.experiment.input.workers > 0

    @property
    def epoch_share_seconds(self) -> float:
        """The median epoch's training time over its steps: what a step takes with all that belongs to it."""
        return self.timings.median_epoch_seconds / self.steps_per_epoch

    @cached_property
    def epoch_share_spread(self) -> tuple[float, float]:
        """`epoch_share_seconds` of a fast and of a slow epoch."""
        return spread([seconds / self.steps_per_epoch for seconds in self.timings.epoch_seconds])

    @cached_property
    def parts_seconds(self) -> dict[str, float]:
        """Seconds of each part of a step that was taken apart after the training."""
        return {name: self._over_an_epoch(getattr(self.attribution.parts, field)) for name, field in PARTS.items()}

    @property
    def shares(self) -> dict[str, float]:
        """Share of each part in the whole step."""
        whole_seconds = sum(self.parts_seconds.values())
        return {part: seconds / whole_seconds for part, seconds in self.parts_seconds.items()}

    @property
    def copying_seconds(self) -> float:
        """Seconds for copying a batch to the device."""
        return self.parts_seconds["copying to the device"]

    @cached_property
    def batch_alone_seconds(self) -> float:
        """Seconds for a batch if no step runs in between."""
        alone_seconds = self._over_an_epoch(self.attribution.batch_alone_seconds)
        if self.loads_ahead:
            return alone_seconds
        # Both passes took the same, and what else goes on in a machine only ever slows one.
        return min(alone_seconds, self.parts_seconds["waiting for data"])

    @property
    def input_seconds(self) -> float:
        """Seconds an epoch would take a step if the steps themselves took no time."""
        if self.loads_ahead:
            return max(self.batch_alone_seconds, self.copying_seconds)
        return self.batch_alone_seconds + self.copying_seconds

    @cached_property
    def step_alone_seconds(self) -> float:
        """Seconds of a step whose batch lies on the device already: the steady state."""
        return statistics.median(self.timings.steady_state.step_seconds)

    @property
    def busy_share(self) -> float:
        """Of an epoch: how much of it the device would need for its steps alone. An accelerator waits for the host
        within its steps too, so for one this is the most that it may be."""
        return min(1.0, self.step_alone_seconds / self.epoch_share_seconds)

    @property
    def beside_step_seconds(self) -> float:
        """Seconds a step of an epoch waits for its data."""
        return max(0.0, self.epoch_share_seconds - self.step_alone_seconds)

    @property
    def issuing_is_hidden(self) -> bool:
        """True if an accelerator works longer on a step than the host takes to launch it."""
        launch_seconds = self.attribution.launch_seconds
        step_seconds = min(self.attribution.same_batch.step_seconds)
        return bool(launch_seconds) and min(launch_seconds) < _HIDDEN_SHARE * step_seconds

    @cached_property
    def fixed_seconds(self) -> float:
        """Of the step alone, what it takes however few images it has; nothing where the device hides what the host
        takes. From the quickest steps: what else goes on in a machine only ever makes some of them slower."""
        if self.issuing_is_hidden:
            return 0.0
        images = min(self.experiment.batch_size, self.timings.training_image_count)
        seconds, other_seconds = (
            min(tried.step_seconds) for tried in (self.attribution.same_batch, self.attribution.other_batch)
        )
        return self.step_alone_seconds * fixed_share(
            images, seconds, self.attribution.other_batch_images, other_seconds
        )

    @property
    def images_seconds(self) -> float:
        """Seconds of a step that grow with the images of its batch."""
        return self.step_alone_seconds - self.fixed_seconds

    def _over_an_epoch(self, values: Sequence[float]) -> float:
        return over_an_epoch(values, self.steps_per_epoch, are_uneven=self.loads_ahead)


def fixed_share(images: int, seconds: float, other_images: int, other_seconds: float) -> float:
    """Return the share of a step that is left with no images, by the line through two batch sizes."""
    if images == other_images:
        return 0.0
    an_image_seconds = (seconds - other_seconds) / (images - other_images)
    return min(1.0, max(0.0, 1 - images * an_image_seconds / seconds))


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Return the tenth and the ninetieth percentile."""
    if len(values) == 1:
        return values[0], values[0]
    low, *_, high = statistics.quantiles(values, n=10, method="inclusive")
    return low, high


def over_an_epoch(values: Sequence[float], steps: int, are_uneven: bool) -> float:
    """The mean over so many steps, of which the first is the first here and the others are like the others here: their
    median, but their mean where it belongs to them to be uneven. Of two workers' batches, every other comes at once.
    """
    first, *others = values
    if not others:
        return first
    other = statistics.fmean(others) if are_uneven else statistics.median(others)
    return other + (first - other) / steps


@dataclass(frozen=True)
class Predictions:
    """Predictions and truth, a row for each test item, or for each value or label of it."""

    actual: npt.NDArray[Any]
    predicted: npt.NDArray[Any]


@dataclass(frozen=True)
class Recorded:
    """Result of a training stage: one experiment on one device."""

    experiment: str
    record: records.Training
    timings: records.Timings
    history: Sequence[EpochMetrics]

    @property
    def device(self) -> DeviceLabel:
        """Label of the device."""
        return self.record.device

    @cached_property
    def costs(self) -> StepCosts | None:
        """Costs of a step, or None if its steps were not taken apart."""
        attribution = self.timings.attribution
        return StepCosts(self.record.experiment, self.timings, attribution) if attribution else None


@dataclass(frozen=True)
class Trained(Recorded):
    """Result of a training stage that was evaluated, too."""

    scores: records.DeviceEvaluation
    first_step: records.FirstStep
    predictions: Predictions
    seed_runs: tuple[records.SeedRun, ...] = ()
    """the same training from further seeds"""


@dataclass(frozen=True)
class NotTrained:
    """Result of a training stage whose device was unavailable."""

    experiment: str
    record: records.Unavailable

    @property
    def device(self) -> DeviceLabel:
        """Label of the device."""
        return self.record.device


DeviceResult = Trained | NotTrained


def read_run(name: str, folder: Path) -> Recorded | NotTrained:
    """Read the result of a training stage."""
    record = records.read_training(folder / records.MODEL)
    if isinstance(record, records.Unavailable):
        return NotTrained(name, record)
    timings = records.read_record(folder / records.TIMINGS_FOLDER / records.TIMINGS, records.Timings)
    return Recorded(name, record, timings, records.read_history(folder / records.MODEL))


def read_results(name: str, folder: Path) -> dict[DeviceLabel, DeviceResult]:
    """Read the results of both devices from an experiment's folder."""
    runs = {device: read_run(name, folder / device) for device in records.DEVICE_LABELS}
    results: dict[DeviceLabel, DeviceResult] = {
        each.device: each for each in runs.values() if isinstance(each, NotTrained)
    }
    trained = [run for run in runs.values() if isinstance(run, Recorded)]
    if not trained:
        return results
    evaluated, devices = folder / records.EVALUATED, [run.device for run in trained]
    seeds = {
        run.device: records.read_seeds(folder / run.device / records.MODEL, run.record.experiment) for run in trained
    }
    scores = records.read_scores(evaluated / records.EVALUATION, [(run.record, seeds[run.device]) for run in trained])
    predictions = _read_predictions(evaluated / records.PREDICTIONS, devices, trained[0].record.task)
    for run in trained:
        learned = folder / run.device / records.MODEL
        results[run.device] = Trained(
            **vars(run),
            scores=scores[run.device],
            first_step=records.read_record(learned / records.FIRST_STEP, records.FirstStep),
            predictions=predictions[run.device],
            seed_runs=seeds[run.device],
        )
    return results


def _read_predictions(path: Path, devices: list[DeviceLabel], task: Task) -> dict[DeviceLabel, Predictions]:
    dtype = "float64" if task == "values" else "int64"
    try:
        table = pd.read_csv(io.BytesIO(path.read_bytes()), usecols=["actual", *devices], dtype=dtype)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is not a table of predictions that can be read: run `dvc repro` ({error})") from error
    return {device: Predictions(table["actual"].to_numpy(), table[device].to_numpy()) for device in devices}
