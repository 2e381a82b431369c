"""Content of MLflow's runs, made from the records alone. The files are the truth; MLflow mirrors them."""

from __future__ import annotations

import csv
import json
import re
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from photofinish.config.experiment import Experiment
from photofinish.files import sha256_of_bytes
from photofinish.machine.fingerprint import CpuTarget, GpuTarget
from photofinish.results import EpochMetrics, EpochTiming, records
from photofinish.wording import seconds

COMPARISON = "comparison"
"""name and identity of the one run that each `compare` brings up to date"""
REPORT_TABLE = "comparison.csv"
_COMPARED = (
    "test_accuracy", "step_seconds", "epoch_seconds", "total_seconds", "step_speedup", "step_speedup_low",
    "step_speedup_high", "epoch_speedup", "epoch_speedup_low", "epoch_speedup_high", "end_to_end_speedup",
    "end_to_end_speedup_low", "end_to_end_speedup_high", "mcnemar_p", "busy_share",
)  # fmt: skip
_RECORDS = (Path(records.MODEL, records.RECORD), Path(records.TIMINGS_FOLDER, records.TIMINGS))
"""last files of a result to be written, below its device's folder"""

TAG_EXPERIMENT = "photofinish.experiment"
TAG_DEVICE = "photofinish.device"
TAG_STATUS = "photofinish.status"
TAG_CURRENT = "photofinish.current"
"""true for the experiment's result as it is on disk, false for an earlier one"""
TAG_TRAINING_KEY = "sha256.training_key"  # in MLflow's list by name, these come after all tags for readers
TAG_RESULT = "sha256.result"
TAG_MIRRORED = "sha256.mirrored"
TAG_RESTORED = "photofinish.restored"
TAG_NOTE = "mlflow.note.content"
TAG_PROCESS = "photofinish.process"
OURS = "**photofinish**"
"""start of each description written here; others are the user's"""
ONCE = 0
"""step of a value that a run has once: MLflow draws a bar for it, and a line for values of several steps"""
_DIGEST_CHARACTERS = 36  # MLflow's limit
_KEY = re.compile(r"[\w. -]{1,250}")
_SOURCE = {"mlflow.source.name": "dvc repro", "mlflow.source.type": "LOCAL"}


@dataclass(frozen=True)
class Point:
    """One value of a metric."""

    key: str
    value: float
    step: int
    timestamp_ms: int


@dataclass(frozen=True)
class RunFacts:
    """Facts about a run that are known before it starts."""

    name: str
    tags: dict[str, str]
    params: dict[str, str]
    dataset: dict[str, str] | None
    """arguments of MLflow's `Dataset`"""


@dataclass(frozen=True)
class RunDocument:
    """Content of a run that ended."""

    facts: RunFacts
    result: str
    """identity of the run: the sha256 of a training's records"""
    mirrored: str
    """sha256 of everything in this document: a run tagged with it is complete"""
    points: list[Point] = field(default_factory=list)
    artifacts: list[tuple[Path, str]] = field(default_factory=list)
    """files or folders, each with its artifact folder"""
    learned: Path | None = None
    """folder to make the model from, if there is one"""
    has_custom_code: bool = False
    """True if making the model runs custom code"""
    started_ms: int | None = None
    ended_ms: int | None = None
    """end of the last epoch"""
    duration_ms: int | None = None
    """duration of the job"""


def dataset_facts(name: str, sha256: str, shape: tuple[int, ...], class_names: tuple[str, ...]) -> dict[str, str]:
    """Describe the data set as a run's input."""
    return {
        "name": name,
        "digest": sha256[:_DIGEST_CHARACTERS],
        "source_type": "local",
        "source": json.dumps({"uri": f"data/splits/{name}"}),
        "profile": json.dumps({"image_shape": list(shape), "classes": len(class_names)}),
    }


def run_facts(
    name: str,
    device: str,
    experiment: Experiment,
    host: CpuTarget | GpuTarget | None,
    packages: dict[str, str],
    git_commit: str | None,
    dataset: dict[str, str] | None,
) -> RunFacts:
    """Return the name, tags and parameters of an experiment's run on one device."""
    tags = {TAG_EXPERIMENT: name, TAG_DEVICE: device, **_SOURCE}
    if host and host.cpu and host.software:
        tags |= {
            "host.cpu": host.cpu.model,
            "host.usable_cores": str(host.cpu.usable_cores),
            "host.threads": str(host.threads),
            "host.instruction_sets": " ".join(host.cpu.instruction_sets),
            "host.system": host.cpu.system,
            "package.python": host.software.python,
        }
        if isinstance(host, GpuTarget) and host.accelerators:
            first = host.accelerators[0]
            tags |= {"host.accelerator": first.name, "host.accelerator_driver": first.driver}
    tags |= {f"package.{package}": version for package, version in packages.items()}
    if git_commit:
        commit, _, dirty = git_commit.partition("-")
        tags |= {"mlflow.source.git.commit": commit, "git.dirty": str(bool(dirty)).lower()}
    params = {key: str(value) for key, value in _flat(experiment.model_dump(mode="json"))}
    return RunFacts(f"{name}/{device}", tags, {**params, "device": device}, dataset)


def _flat(value: Any, prefix: str = "") -> list[tuple[str, Any]]:
    """Flatten `{"optimizer": {"lr": 0.1}}` to `optimizer.lr`; keep a dictionary whose keys MLflow refuses."""
    if not isinstance(value, dict):
        return [(prefix, value)]
    children = {f"{prefix}.{key}" if prefix else str(key): child for key, child in value.items()}
    if not all(map(_KEY.fullmatch, children)):
        return [(prefix, value)]
    return [pair for key, child in children.items() for pair in _flat(child, key)]


def is_written(folder: Path) -> bool:
    """Return True if a device's result is complete, False if it is missing or still being written."""
    return all((folder / file).is_file() for file in _RECORDS)


def training_document(name: str, device: records.DeviceLabel, results: Path) -> RunDocument | None:
    """Describe one experiment's training on one device; return None if the device was unavailable."""
    folder = results / name / device
    learned = folder / records.MODEL
    record = records.read_training(learned)
    if isinstance(record, records.Unavailable):
        return None
    timings = records.read_record(folder / records.TIMINGS_FOLDER / records.TIMINGS, records.Timings)
    history, seeds = records.read_history(learned), records.read_seeds(learned, record.experiment)
    result = _digest(f"{name}/{device}", *(folder / file for file in _RECORDS))
    artifacts = [(folder / part, part) for part in (records.MODEL, records.TIMINGS_FOLDER)]
    summary, mirrored, scores = _summary(timings), result, None
    evaluation = results / name / records.EVALUATED / records.EVALUATION
    if evaluation.is_file():  # until `evaluate` has run, of the weights before
        scores = records.read_record(evaluation, records.Evaluation).scores_of(record, seeds)
    if scores:
        artifacts.append((evaluation, records.EVALUATED))
        mirrored = _digest(result, evaluation)
        ours = {"accuracy": scores.test_accuracy, "loss": scores.test_loss, "macro_f1": scores.macro_f1}
        shown = scores.metrics | {key: value for key, value in ours.items() if value is not None}
        summary |= {f"test_{key}": value for key, value in shown.items()}
    ended_ms = _milliseconds(timings.epochs[-1].ended_at_unix_seconds)
    points = []
    for metrics, timing in zip(history, timings.epochs, strict=True):
        points += epoch_points(metrics, timing, timings.training_image_count)
    points += [Point("seed_validation_loss", run.history[-1].validation_loss, run.seed, ended_ms) for run in seeds]
    points += [Point(key, float(value), ONCE, ended_ms) for key, value in summary.items() if value is not None]
    dataset = dataset_facts(record.experiment.dataset, record.data_sha256, record.image_shape, record.class_names)
    facts = run_facts(name, device, record.experiment, timings.host, timings.packages, timings.git_commit, dataset)
    quality = f": {scores.in_words}" if scores else ""
    facts.tags.update(
        {
            TAG_STATUS: record.status,
            "device.name": timings.device_name,
            "host.name": timings.host_name,
            TAG_NOTE: f"{OURS}: {record.experiment.model.name} trained on {record.experiment.dataset} by "
            f"{timings.device_name}{quality}. {len(history)} epochs of {seconds(timings.median_epoch_seconds)}, "
            f"{seconds(timings.total_seconds)} in all.",
        }
    )
    return RunDocument(
        facts,
        result,
        mirrored,
        points,
        artifacts,
        learned,
        bool(record.custom_code),
        _milliseconds(timings.started_at_unix_seconds),
        ended_ms,
        _milliseconds(timings.total_seconds),
    )


def epoch_points(metrics: EpochMetrics, timing: EpochTiming, training_images: int) -> list[Point]:
    """Return the metrics of one epoch, at its end."""
    values = asdict(metrics) | asdict(timing) | {"images_per_second": training_images / timing.training_seconds}
    epoch, timestamp_ms = values.pop("epoch"), _milliseconds(values.pop("ended_at_unix_seconds"))
    return [Point(key, value, epoch, timestamp_ms) for key, value in values.items() if value is not None]


def _summary(timings: records.Timings) -> dict[str, float | None]:
    parts = timings.attribution.parts.median_seconds if timings.attribution else {}
    return {
        "startup_seconds": timings.startup_seconds,
        "data_seconds": timings.data_seconds,
        "warm_up_seconds": timings.warm_up_seconds,
        "total_seconds": timings.total_seconds,
        "median_epoch_seconds": timings.median_epoch_seconds,
        "median_step_seconds": statistics.median(timings.steady_state.step_seconds),
        "overhead_share": timings.overhead.share,
        "median_images_per_second": timings.images_per_second,
        "peak_memory_bytes": timings.peak_memory_bytes,
        **{f"median_step_{part}": value for part, value in parts.items()},
    }


def report_document(report: Path) -> RunDocument:
    """Describe the comparison: the report's files, with one metric for each row and column of its table."""
    table = report / REPORT_TABLE
    rows = list(csv.DictReader(table.read_text(encoding="utf-8").splitlines()))
    written_ms = _milliseconds(table.stat().st_mtime)
    tags, points = {**_SOURCE, TAG_STATUS: "compared"}, []
    for row in rows:
        if row.get("cause"):
            tags[f"cause.{row['experiment']}.{row['device']}"] = row["cause"]
        for key in _COMPARED:
            if row.get(key):
                points.append(Point(f"{row['experiment']}/{row['device']}/{key}", float(row[key]), ONCE, written_ms))
    facts = RunFacts(COMPARISON, tags, {}, None)
    return RunDocument(facts, COMPARISON, digest(report), points, [(report, "report")])


def files_of(path: Path) -> list[Path]:
    """Return the files below a folder, relative to it; or the file itself, relative to its folder."""
    if path.is_file():
        return [Path(path.name)]
    return sorted(file.relative_to(path) for file in path.rglob("*") if file.is_file())


def digest(path: Path) -> str:
    """Return the sha256 of a file or folder, with the names in it."""
    base, files = path.parent if path.is_file() else path, files_of(path)
    return _digest(json.dumps(list(map(str, files))), *(base / file for file in files))


def _digest(text: str, *paths: Path) -> str:
    return sha256_of_bytes(json.dumps([text, *(sha256_of_bytes(path.read_bytes()) for path in paths)]).encode())


def _milliseconds(value: float) -> int:
    return round(value * 1000)
