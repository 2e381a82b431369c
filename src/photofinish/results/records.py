"""Records of a run on disk. `model/` repeats bit for bit, `timings/` never does."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import astuple, fields
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, Field, RootModel, TypeAdapter, ValidationError

from photofinish.config.base import Record
from photofinish.config.datasets import Decode
from photofinish.config.experiment import Experiment
from photofinish.data import Dtype, PartName, Shape, TaskName
from photofinish.errors import UserError
from photofinish.files import sha256_of_bytes, to_csv, write_text_atomically
from photofinish.machine.load import LoadWindow
from photofinish.nested import Nested
from photofinish.results import EpochMetrics, EpochTiming, passed_seconds
from photofinish.results.trained import (
    DeviceEvaluation,
    DeviceLabel,
    Overhead,
    Readings,
    SeedRun,
    StepsTaken,
    Where,
)

MODEL, TIMINGS_FOLDER, EVALUATED = "model", "timings", "evaluation"
SEEDS = "seeds"
RECORD, HISTORY, WEIGHTS = "record.json", "history.csv", "weights.safetensors"
EPOCHS = "epochs"
TIMINGS = "timings.json"
EVALUATION, PREDICTIONS = "evaluation.json", "predictions.csv"
_HISTORY_ROW = TypeAdapter(EpochMetrics)
_ModelT = TypeVar("_ModelT", bound=BaseModel)


class TrainingRecord(Record):
    """Record of a run that trained: model/record.json."""

    status: Literal["trained"] = "trained"
    device: DeviceLabel
    device_kind: str
    experiment: Experiment
    precision: str
    """Effective precision. tf32 falls back to fp32 on hardware without TF32."""
    memory_format: Literal["contiguous", "channels_last"] = "contiguous"
    parameter_count: int
    task: TaskName = "classes"
    image_shape: Nested[Shape]
    dtype: Nested[Dtype] = "uint8"
    """Dtype of the packed samples: uint8 for images."""
    target_shape: Shape = ()
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    data_sha256: str
    """SHA-256 of the split's manifest, which contains each data file's SHA-256."""
    decode: Decode = "once"
    """With `each_epoch`, the loader read the data set in each epoch."""
    samples: dict[PartName, int] = Field(default_factory=dict)
    published_weights_sha256: str | None = None
    initial_weights_sha256: str
    weights_sha256: str
    custom_code: dict[str, str] = Field(default_factory=dict)
    """SHA-256 of each file of custom code, and version of each package that it imports."""


class FurtherSeeds(Record):
    """Records of the further seeds: model/seeds.json."""

    runs: tuple[SeedRun, ...]


class Unavailable(Record):
    """Record of a missing device: model/record.json."""

    status: Literal["unavailable"] = "unavailable"
    device: DeviceLabel
    experiment: Experiment
    reason: str


class _EitherTraining(
    RootModel[Annotated[TrainingRecord | Unavailable, Field(discriminator="status")]]
):
    """Record of either status: model/record.json."""


class TrainingTimes(Readings, Where):
    """Times of a training: timings/timings.json."""

    training_image_count: int
    steps_per_epoch: int | None = None
    images_per_second: float | None
    """Training samples divided by the median training time of an epoch, over all repeats."""
    startup_seconds: float
    """Time from the process's start to the first step, without warm-up and photofinish's checks."""
    startup_cpu_seconds: float | None = None
    """CPU time of the main thread in the start-up."""
    total_seconds: float
    """Time from the process's start to the last result, without warm-up, checks and tracking.

    For a resumed run, the sum over its processes.
    """
    load: tuple[LoadWindow, ...]
    """Load between readings after epochs."""
    epochs: tuple[EpochTiming, ...]
    epochs_left: int = 0
    """Number of planned epochs that were not trained because of a time limit."""
    repeats: tuple[tuple[EpochTiming, ...], ...] = ()
    """Epochs of each further training from the same start."""
    seeds: tuple[tuple[EpochTiming, ...], ...] = ()
    """Epochs of the training from each further seed."""
    resumed_at_epochs: tuple[int, ...] = ()
    data_seconds: float
    """Time to read, normalise and copy the split. Part of the start-up."""
    warm_up_seconds: float
    """Time of warm-up steps before the training. Not part of the start-up or the total."""
    tracking_seconds: float
    """Time in which training waited for MLflow."""
    overhead: Overhead
    steps_taken: StepsTaken | None = None
    identity: str | None = None
    """SHA-256 of all that determines the training, except the experiment's name."""

    @property
    def all_epochs(self) -> list[EpochTiming]:
        """Epochs of the first training and of its repeats."""
        return [*self.epochs, *(timing for repeat in self.repeats for timing in repeat)]

    @property
    def once_seconds(self) -> float:
        """Time outside the passes: start-up, writing results."""
        once_seconds = self.total_seconds - passed_seconds(self.epochs)
        least_seconds = min(self.startup_seconds, once_seconds)
        return max(least_seconds, once_seconds - self.overhead.seconds)

    @property
    def planned_epochs(self) -> int:
        return len(self.epochs) + self.epochs_left

    @property
    def whole_seconds(self) -> float:
        """Duration of the whole job, whose every epoch takes the mean time of those trained."""
        mean_seconds = passed_seconds(self.all_epochs) / len(self.all_epochs)
        return self.once_seconds + self.planned_epochs * mean_seconds

    @property
    def seeds_seconds(self) -> float:
        """Time of all further seeds' passes, including the epochs left."""
        left = self.epochs_left
        return sum(passed_seconds(seed) * (1 + left / len(seed)) for seed in self.seeds)


class Untimed(Record):
    """Content of timings/timings.json for a missing device."""

    status: Literal["unavailable"] = "unavailable"


class Evaluation(Record):
    """Evaluation of the available devices: evaluation/evaluation.json."""

    experiment: str
    class_names: tuple[str, ...]
    devices: dict[DeviceLabel, DeviceEvaluation]

    def scores_of(
        self, training: TrainingRecord, seeds: Iterable[SeedRun]
    ) -> DeviceEvaluation | None:
        """Return a device's scores, or None if they do not belong to this training's weights."""
        scores = self.devices.get(training.device)
        if not scores:
            return None
        expected = [training.weights_sha256, *(run.weights_sha256 for run in seeds)]
        evaluated = [scores.weights_sha256, *(seed.weights_sha256 for seed in scores.seeds)]
        return scores if evaluated == expected else None


def training_key(name: str, identity: str | None) -> str:
    """Return the key of an experiment's training, which does not need a record."""
    return sha256_of_bytes(f"{name} {identity}".encode())


def read_training(folder: Path) -> TrainingRecord | Unavailable:
    return read_record(folder / RECORD, _EitherTraining).root


def read_seeds(folder: Path, experiment: Experiment) -> tuple[SeedRun, ...]:
    if experiment.seeds == 1:
        return ()
    return read_record(folder / f"{SEEDS}.json", FurtherSeeds).runs


def write_record(path: Path, record: BaseModel) -> None:
    """Write a record as indented JSON, atomically."""
    write_text_atomically(path, f"{record.model_dump_json(indent=2)}\n")


def read_record(path: Path, schema: type[_ModelT]) -> _ModelT:
    try:
        return schema.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise UserError(
            f"{path} is not a record that can be read: run `dvc repro` ({error})"
        ) from error


def read_scores(
    path: Path, trained: Iterable[tuple[TrainingRecord, tuple[SeedRun, ...]]]
) -> dict[DeviceLabel, DeviceEvaluation]:
    evaluation = read_record(path, Evaluation)
    scores_by_device = {}
    for training, seeds in trained:
        device = training.device
        scores = evaluation.scores_of(training, seeds)
        if scores is None:
            raise UserError(f"{path} has no scores of what the {device} trained: run `dvc repro`")
        scores_by_device[device] = scores
    return scores_by_device


def read_history(folder: Path) -> list[EpochMetrics]:
    rows = csv.DictReader((folder / HISTORY).read_text(encoding="utf-8").splitlines())
    known = [{name: text for name, text in row.items() if text} for row in rows]
    return [_HISTORY_ROW.validate_strings(row) for row in known]


def write_history(folder: Path, rows: Iterable[EpochMetrics]) -> None:
    """Write model/history.csv, in full precision."""
    columns = [field.name for field in fields(EpochMetrics)]
    write_text_atomically(folder / HISTORY, to_csv(columns, map(astuple, rows)))
