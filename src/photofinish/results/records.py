"""What a training run is on disk. `learned/` repeats bit for bit; `timed/` never does, so they are kept apart."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable
from dataclasses import astuple, fields
from pathlib import Path
from typing import Annotated, Literal, Self, TypeVar

from pydantic import BaseModel, Field, RootModel, TypeAdapter, ValidationError, model_validator

from photofinish.data import Dtype, Task
from photofinish.errors import UserError
from photofinish.files import read_summed, write_summed
from photofinish.machine.energy import Energy
from photofinish.machine.fingerprint import CpuHost, GpuHost
from photofinish.machine.load import LoadWindow
from photofinish.params.base import Record
from photofinish.params.experiment import Experiment
from photofinish.results import EpochMetrics, EpochTiming, median_training_seconds, passed_seconds
from photofinish.results.measurements import Attribution, Operations, Overhead, SteadyState, StepsTaken

LEARNED, TIMED, EVALUATED = "learned", "timed", "evaluation"
SEEDS = "seeds"
RECORD, HISTORY, WEIGHTS, TIMINGS = "record.json", "history.csv", "weights.safetensors", "timings.json"
FIRST_BATCH, SUMMARY, EPOCHS, FIRST_STEP = "first_batch.png", "summary.txt", "epochs", "first_step.json"
EVALUATION, PREDICTIONS = "evaluation.json", "predictions.csv"
MEAN_ABSOLUTE_ERROR = "mean_absolute_error"
DeviceLabel = Literal["cpu", "gpu"]
DEVICE_LABELS: tuple[DeviceLabel, ...] = ("cpu", "gpu")
_HISTORY_ROW = TypeAdapter(EpochMetrics)
_ModelT = TypeVar("_ModelT", bound=BaseModel)


class Training(Record):
    """learned/record.json of a run that trained."""

    status: Literal["trained"] = "trained"
    device: DeviceLabel
    device_kind: str
    experiment: Experiment
    precision: str
    """what was really computed in; see torch_device.effective_precision"""
    memory_format: Literal["contiguous", "channels_last"] = "contiguous"
    """how weights and images lay in memory; see torch_device.memory_format"""
    parameter_count: int
    task: Task = "classes"
    image_shape: tuple[int, ...]
    dtype: Dtype = "uint8"
    """what items are packed in: images in bytes, others in what the network takes"""
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    data_sha256: str
    """of the split's manifest, which holds the sha256 of each data file"""
    published_weights_sha256: str | None = None
    """of the file that the network started from, where the experiment names one"""
    initial_weights_sha256: str
    weights_sha256: str
    epoch_weights_sha256: tuple[str, ...] = ()
    """of the files in learned/epochs, the first epoch's first; none unless every epoch's weights are kept"""
    own_code: dict[str, str] = Field(default_factory=dict)
    """the sha256 of each of the user's own files that ran, and the versions of packages they name"""


class SeedRun(Record):
    """The same training from another seed; its weights are in learned/seeds."""

    seed: int
    weights_sha256: str
    history: tuple[EpochMetrics, ...]


class FurtherSeeds(Record):
    """learned/seeds.json, where an experiment is trained from several seeds: all but the record's own."""

    runs: tuple[SeedRun, ...]


class Unavailable(Record):
    """learned/record.json where the device isn't there: a result too, never a CPU run in disguise."""

    status: Literal["unavailable"] = "unavailable"
    device: DeviceLabel
    experiment: Experiment
    reason: str


class _EitherRecord(RootModel[Annotated[Training | Unavailable, Field(discriminator="status")]]):
    """learned/record.json, of either status."""


Print = tuple[float, float]
"""A tensor's norm, and its sum with fixed random signs: rounding that leaves a norm as it is moves the second."""


class FirstStep(Record):
    """learned/first_step.json: the start of the training, layer by layer; see measuring/first_step.py."""

    batch_order_sha256: str
    """of the rows of the first epoch in their order, and of their labels"""
    first_batch_sha256: str
    """of its images and labels as the network gets them"""
    loss: float
    weights: dict[str, Print]
    """of each parameter, before the first step"""
    outputs: dict[str, Print]
    """of each module that has none below it, in the order in which they run"""
    gradients: dict[str, Print]
    cpu_fallbacks: dict[str, int] = Field(default_factory=dict)
    """how often operators that the device lacks were computed on the CPU, forward and backward"""


class Timings(Record):
    """timed/timings.json: how long it took, where and when."""

    host: CpuHost | GpuHost
    host_name: str
    device_name: str
    git_commit: str | None
    packages: dict[str, str]
    started_at_unix_seconds: float
    startup_seconds: float
    """from the start of the process to the first timed step: imports, device, data, warm-up"""
    data_seconds: float
    """of the start-up: the split read, normalised and put where the input path wants it"""
    warm_up_seconds: float
    epochs: tuple[EpochTiming, ...]
    total_seconds: float
    """from the start of the process to the last result, less tracking; of a resumed run, the sum over its processes"""
    tracking_seconds: float
    """how long training stood still for MLflow"""
    resumed_at_epochs: tuple[int, ...]
    training_image_count: int
    images_per_second: float
    """training images over the median epoch's training time, of all repeats"""
    device_count: int = 1
    """GPUs, or processes on the CPU, that shared the training"""
    peak_memory_bytes: int | None
    """of the device, or on the CPU of the process; of several, the one that took most"""
    repeats: tuple[tuple[EpochTiming, ...], ...] = ()
    """the epochs of each further training from the same start, in the same process"""
    seeds: tuple[tuple[EpochTiming, ...], ...] = ()
    """the epochs of the training from each further seed"""
    steady_state: SteadyState
    steps_taken: StepsTaken | None = None
    """None in records of before there was a choice: one by one"""
    overhead: Overhead
    load: tuple[LoadWindow, ...]
    """how busy the machine was, from one reading between two epochs to the next; the last one while more was measured
    after the training"""
    energy: tuple[Energy, ...] = ()
    """of the first training, a part of the machine each"""
    attribution: Attribution | None = None
    not_attributed: str | None = None
    """why there is none"""
    operations: Operations | None = None
    not_counted: str | None = None
    """why there are none"""
    identity: str | None = None
    """the sha256 of all that determines the training; another experiment's of the same is only named otherwise"""

    @property
    def all_epochs(self) -> list[EpochTiming]:
        """Of the first training and of its repeats, in their order."""
        return [*self.epochs, *(timing for repeat in self.repeats for timing in repeat)]

    @property
    def epoch_seconds(self) -> list[float]:
        """Of the training pass, over all repeats."""
        return [epoch.training_seconds for epoch in self.all_epochs]

    @property
    def median_epoch_seconds(self) -> float:
        """Of the same."""
        return median_training_seconds(self.all_epochs)

    @property
    def once_seconds(self) -> float:
        """Of the total, what happened once and no repeat measures again: start-up, checkpoints, writing results."""
        return self.total_seconds - passed_seconds(self.epochs)

    @property
    def end_to_end_seconds(self) -> list[float]:
        """A value for each repeat: its own epochs, with what happened once."""
        return [self.total_seconds, *(self.once_seconds + passed_seconds(repeat) for repeat in self.repeats)]

    @model_validator(mode="after")
    def _throughput_fits_time(self) -> Self:
        images = self.images_per_second * self.median_epoch_seconds
        if not math.isclose(images, self.training_image_count, rel_tol=1e-9):
            raise ValueError(f"images_per_second times the median epoch is {images}, not training_image_count")
        return self


class Untimed(Record):
    """timed/timings.json where nothing ran."""

    status: Literal["unavailable"] = "unavailable"


class ClassScores(Record):
    """How well one class is told from the others on the test images."""

    precision: float
    recall: float
    f1: float
    image_count: int


class SeedScores(Record):
    """How well the network trained from another seed does on the test images."""

    seed: int
    weights_sha256: str = ""
    test_accuracy: float | None
    test_loss: float
    mean_absolute_error: float | None


class DeviceEvaluation(Record):
    """How the network trained on one device does on the test images; computed on the CPU for every device."""

    weights_sha256: str = ""
    """weights that were judged; empty in records of before this was written"""
    test_accuracy: float | None
    """None where values are told"""
    test_loss: float
    macro_f1: float | None
    metrics: dict[str, float] = Field(default_factory=dict)
    """by name; of values, how far off they are"""
    classes: dict[str, ClassScores]
    """of each class or label; none where values are told"""
    confusion: tuple[tuple[int, ...], ...]
    """rows: the true class; columns: the predicted one; of classes only"""
    seeds: tuple[SeedScores, ...] = ()
    """of the networks trained from further seeds"""

    @property
    def figure(self) -> tuple[str, str]:
        """The one that says most: what it is called, and how large it is."""
        if self.test_accuracy is not None:
            return "test accuracy", f"{self.test_accuracy:.2%}"
        return MEAN_ABSOLUTE_ERROR.replace("_", " "), f"{self.metrics[MEAN_ABSOLUTE_ERROR]:.4g}"

    @property
    def in_words(self) -> str:
        """How good it is, by that."""
        name, size = self.figure
        return f"{size} {name}" if self.test_accuracy is not None else f"a {name} of {size} on the test data"


class Evaluation(Record):
    """results/<experiment>/evaluation/evaluation.json; a device that was unavailable has no entry."""

    experiment: str
    class_names: tuple[str, ...]
    devices: dict[DeviceLabel, DeviceEvaluation]

    def scores_of(self, training: Training, seeds: Iterable[SeedRun]) -> DeviceEvaluation | None:
        """Return how a device's network does, or None if other weights than those of this training were judged."""
        scores = self.devices.get(training.device)
        expected = [training.weights_sha256, *(run.weights_sha256 for run in seeds)]
        if scores and expected == [scores.weights_sha256, *(each.weights_sha256 for each in scores.seeds)]:
            return scores
        return None


def read_training(folder: Path) -> Training | Unavailable:
    """The record in the folder `learned`."""
    return read_record(folder / RECORD, _EitherRecord).root


def read_seeds(folder: Path, experiment: Experiment) -> tuple[SeedRun, ...]:
    """What the folder `learned` holds of the training from further seeds."""
    return read_record(folder / f"{SEEDS}.json", FurtherSeeds).runs if experiment.seeds > 1 else ()


def write_record(path: Path, record: BaseModel) -> None:
    """As indented JSON, in place of what was there, all of it or nothing, with its sha256 beside it."""
    write_summed(path, f"{record.model_dump_json(indent=2)}\n".encode())


def read_record(path: Path, schema: type[_ModelT]) -> _ModelT:
    """What the file holds, every field of it checked against the schema."""
    try:
        return schema.model_validate_json(read_summed(path))
    except (OSError, ValidationError) as error:
        raise UserError(f"{path} is not a record that can be read: run `dvc repro` ({error})") from error


def read_scores(
    path: Path, trained: Iterable[tuple[Training, tuple[SeedRun, ...]]]
) -> dict[DeviceLabel, DeviceEvaluation]:
    """Return the scores in evaluation.json of these trainings and their further seeds."""
    evaluation = read_record(path, Evaluation)
    found = {}
    for training, seeds in trained:
        scores = evaluation.scores_of(training, seeds)
        if scores is None:
            raise UserError(f"{path} has no scores of the network that the {training.device} trained: run `dvc repro`")
        found[training.device] = scores
    return found


def read_history(folder: Path) -> list[EpochMetrics]:
    """The rows of learned/history.csv."""
    path = folder / HISTORY
    try:
        rows = csv.DictReader(io.StringIO(read_summed(path).decode()))
        return [_HISTORY_ROW.validate_strings({key: text for key, text in row.items() if text}) for row in rows]
    except (OSError, ValidationError) as error:
        raise UserError(f"{path} is not a history that can be read: run `dvc repro` ({error})") from error


def history_csv(rows: list[EpochMetrics]) -> str:
    """As CSV, with every digit: repr of a float reads back as the same float."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(field.name for field in fields(EpochMetrics))
    writer.writerows(["" if value is None else repr(value) for value in astuple(row)] for row in rows)
    return text.getvalue()
