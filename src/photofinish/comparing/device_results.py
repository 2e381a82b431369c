"""What each device left of an experiment, read from results/: its training, and what its model made of test items."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy.typing as npt
import pandas as pd

from photofinish.comparing.step_costs import StepCosts, step_costs
from photofinish.errors import UserError
from photofinish.files import read_summed
from photofinish.results import EpochMetrics, records
from photofinish.results.records import DeviceLabel


@dataclass(frozen=True)
class Predictions:
    """A row for each test item, or for each value or label of it."""

    actual: npt.NDArray[Any]
    predicted: npt.NDArray[Any]


@dataclass(frozen=True)
class Recorded:
    """What a training stage left of one experiment on one device."""

    experiment: str
    record: records.Training
    timings: records.Timings
    history: Sequence[EpochMetrics]

    @property
    def device(self) -> DeviceLabel:
        """Which of the two."""
        return self.record.device

    @cached_property
    def costs(self) -> StepCosts | None:
        """None where its steps were not taken apart."""
        attribution = self.timings.attribution
        return step_costs(self.record.experiment, self.timings, attribution) if attribution else None


@dataclass(frozen=True)
class Trained(Recorded):
    """The same, evaluated."""

    scores: records.DeviceEvaluation
    first_step: records.FirstStep
    predictions: Predictions
    seed_runs: tuple[records.SeedRun, ...] = ()
    """the same training from further seeds"""


@dataclass(frozen=True)
class NotTrained:
    """What is left where the device was unavailable."""

    experiment: str
    record: records.Unavailable

    @property
    def device(self) -> DeviceLabel:
        """Which of the two."""
        return self.record.device


DeviceResult = Trained | NotTrained


def read_run(name: str, folder: Path) -> Recorded | NotTrained:
    """What a training stage left in the folder."""
    record = records.read_training(folder / records.LEARNED)
    if isinstance(record, records.Unavailable):
        return NotTrained(name, record)
    timings = records.read_record(folder / records.TIMED / records.TIMINGS, records.Timings)
    return Recorded(name, record, timings, records.read_history(folder / records.LEARNED))


def read_results(names: Iterable[str], folder: Path) -> list[DeviceResult]:
    """Both devices' of each experiment."""
    results: list[DeviceResult] = []
    for name in names:
        runs = [read_run(name, folder / name / device) for device in records.DEVICE_LABELS]
        scores, predictions = _read_evaluation(
            folder / name / records.EVALUATED, [run for run in runs if isinstance(run, Recorded)]
        )
        for run in runs:
            if isinstance(run, NotTrained):
                results.append(run)
                continue
            learned, of = folder / name / run.device / records.LEARNED, run.device
            first_step = records.read_record(learned / records.FIRST_STEP, records.FirstStep)
            seeds = records.read_seeds(learned, run.record.experiment)
            found = scores[of], first_step, predictions[of], seeds
            results.append(Trained(name, run.record, run.timings, run.history, *found))
    return results


def _read_evaluation(
    folder: Path, runs: Sequence[Recorded]
) -> tuple[dict[DeviceLabel, records.DeviceEvaluation], dict[DeviceLabel, Predictions]]:
    """Scores and predictions of these runs' networks, which lie in one file each."""
    if not runs:
        return {}, {}
    devices, path = [run.device for run in runs], folder / records.PREDICTIONS
    dtype = "float64" if runs[0].record.task == "values" else "int64"
    try:
        table = pd.read_csv(io.BytesIO(read_summed(path)), usecols=["actual", *devices], dtype=dtype)
        predictions = {
            device: Predictions(*(table[name].to_numpy() for name in ("actual", device))) for device in devices
        }
    except (OSError, ValueError, LookupError) as error:
        problem = f"{path} is not a table of predictions that can be read: run `dvc repro` ({error})"
        raise UserError(problem) from error
    return records.read_scores(folder / records.EVALUATION, devices), predictions
