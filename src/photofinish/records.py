"""What a training run is on disk. `learned/` repeats bit for bit; `timed/` never does, so they are kept apart."""

from __future__ import annotations

import csv
import io
from dataclasses import astuple, fields
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from photofinish.epochs import EpochMetrics, EpochTiming
from photofinish.errors import UserError
from photofinish.files import write_text_atomically
from photofinish.hosts import CpuHost, GpuHost
from photofinish.params import Experiment

LEARNED, TIMED, EVALUATED = "learned", "timed", "evaluation"
RECORD, HISTORY, WEIGHTS, TIMINGS = "record.json", "history.csv", "weights.safetensors", "timings.json"
EVALUATION, METRICS = "evaluation.json", "metrics.json"
DeviceLabel = Literal["cpu", "gpu"]
DEVICE_LABELS: tuple[DeviceLabel, ...] = ("cpu", "gpu")
_ModelT = TypeVar("_ModelT", bound=BaseModel)


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class Training(_Record):
    """learned/record.json of a run that trained."""

    status: Literal["trained"] = "trained"
    device: DeviceLabel
    device_kind: str
    experiment: Experiment
    precision: str
    """what was really computed in; see devices.effective_precision"""
    parameter_count: int
    image_shape: tuple[int, int, int]
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    data_sha256: str
    """of the split's manifest, which holds the sha256 of each data file"""
    initial_weights_sha256: str
    weights_sha256: str


class Unavailable(_Record):
    """learned/record.json where the device isn't there: a result too, never a CPU run in disguise."""

    status: Literal["unavailable"] = "unavailable"
    device: DeviceLabel
    experiment: Experiment
    reason: str


class Timings(_Record):
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
    """training images over the median epoch's training time"""
    peak_memory_bytes: int | None


class Untimed(_Record):
    """timed/timings.json where nothing ran."""

    status: Literal["unavailable"] = "unavailable"


class ClassScores(_Record):
    precision: float
    recall: float
    f1: float
    image_count: int


class DeviceEvaluation(_Record):
    """How the network trained on one device does on the test images; computed on the CPU for every device."""

    test_accuracy: float
    test_loss: float
    macro_f1: float
    classes: dict[str, ClassScores]
    confusion: tuple[tuple[int, ...], ...]
    """rows: the true class; columns: the predicted one"""


class Evaluation(_Record):
    """results/<experiment>/evaluation/evaluation.json; a device that was unavailable has no entry."""

    experiment: str
    class_names: tuple[str, ...]
    devices: dict[DeviceLabel, DeviceEvaluation]


def read_training(folder: Path) -> Training | Unavailable:
    """The record in the folder `learned`."""
    path = folder / RECORD
    status = read_record(path, _Status).status
    if status == "trained":
        return read_record(path, Training)
    return read_record(path, Unavailable)


def write_record(path: Path, record: BaseModel) -> None:
    write_text_atomically(path, record.model_dump_json(indent=2) + "\n")


def read_record(path: Path, schema: type[_ModelT]) -> _ModelT:
    try:
        return schema.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise UserError(f"{path} is not a record that can be read: run `dvc repro` ({error})") from error


def read_history(folder: Path) -> list[EpochMetrics]:
    """The rows of learned/history.csv."""
    path = folder / HISTORY
    try:
        rows = csv.DictReader(io.StringIO(path.read_text(encoding="utf-8")))
        return [_HISTORY_ROW.validate_strings(row) for row in rows]
    except (OSError, ValidationError) as error:
        raise UserError(f"{path} is not a history that can be read: run `dvc repro` ({error})") from error


def history_csv(rows: list[EpochMetrics]) -> str:
    """As CSV, with every digit: repr of a float reads back as the same float."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(field.name for field in fields(EpochMetrics))
    writer.writerows(map(repr, astuple(row)) for row in rows)
    return text.getvalue()


class _Status(BaseModel):
    """Only what tells the two kinds of record apart."""

    status: Literal["trained", "unavailable"]


_HISTORY_ROW = TypeAdapter(EpochMetrics)
