"""What MLflow should show of a run, made from the records alone. The files are the truth; MLflow mirrors them."""

from __future__ import annotations

import csv
import json
import re
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from photofinish.files import sha256_of_bytes
from photofinish.machine.fingerprint import CpuHost, GpuHost
from photofinish.params.experiment import Experiment
from photofinish.results import EpochMetrics, EpochTiming, records

REPORT_TABLE = "comparison.csv"
_COMPARED = (
    "test_accuracy", "step_seconds", "epoch_seconds", "total_seconds", "step_speedup", "step_speedup_low",
    "step_speedup_high", "epoch_speedup", "epoch_speedup_low", "epoch_speedup_high", "end_to_end_speedup",
    "end_to_end_speedup_low", "end_to_end_speedup_high", "mcnemar_p", "busy_share",
)  # fmt: skip

_RECORDS = (Path(records.LEARNED, records.RECORD), Path(records.TIMED, records.TIMINGS))
"""below a device's folder: the last files of a result to be written, which tell it from others"""

Artifact = tuple[Path, str]
"""a file, and the artifact folder it belongs to"""

TAG_EXPERIMENT = "photofinish.experiment"
TAG_DEVICE = "photofinish.device"
TAG_STATUS = "photofinish.status"
TAG_CURRENT = "photofinish.current"
"""true or false: whether this is the experiment's result as it is on disk, or an earlier one"""
TAG_TRAINING_KEY = "sha256.training_key"  # in a list by name, these come after all that is to be read
TAG_RESULT = "sha256.result"
TAG_RESULT_BEFORE = "photofinish.result"
"""what runs that an earlier version told are found by"""
TAG_MIRRORED = "sha256.mirrored"
TAG_RESTORED = "photofinish.restored"
TAG_NOTE = "mlflow.note.content"
TAG_PROCESS = "photofinish.process"
_DIGEST_CHARACTERS = 36  # as many as MLflow takes
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
    """What is known of a run before it starts."""

    name: str
    tags: dict[str, str]
    params: dict[str, str]
    dataset: dict[str, str] | None
    """what MLflow's `Dataset` is made with"""


@dataclass(frozen=True)
class RunDocument:
    """All that MLflow should show of a run that ended."""

    facts: RunFacts
    result: str
    """the run's identity: the sha256 of its records"""
    mirrored: str
    """of everything in this document: a run tagged with it is complete"""
    points: list[Point] = field(default_factory=list)
    artifacts: list[Artifact] = field(default_factory=list)
    learned: Path | None = None
    """the folder to make the model from, if one was trained"""
    has_own_code: bool = False
    """whether making the model runs code of the user's"""
    started_ms: int | None = None
    ended_ms: int | None = None
    """of the last epoch"""
    duration_ms: int | None = None
    """of the job"""


def dataset_facts(name: str, sha256: str, shape: tuple[int, ...], class_names: tuple[str, ...]) -> dict[str, str]:
    """The data set as a run's input."""
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
    host: CpuHost | GpuHost | None,
    packages: dict[str, str],
    git_commit: str | None,
    dataset: dict[str, str] | None,
) -> RunFacts:
    """The name, tags and parameters of an experiment's run on one device."""
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
        if isinstance(host, GpuHost) and host.accelerators:
            first = host.accelerators[0]
            tags |= {"host.accelerator": first.name, "host.accelerator_driver": first.driver}
    tags |= {f"package.{package}": version for package, version in packages.items()}
    if git_commit:
        commit, _, dirty = git_commit.partition("-")
        tags |= {"mlflow.source.git.commit": commit, "git.dirty": str(bool(dirty)).lower()}
    params = {key: str(value) for key, value in _flat(experiment.model_dump(mode="json"))}
    return RunFacts(f"{name}/{device}", tags, {**params, "device": device}, dataset)


def _flat(value: Any, prefix: str = "") -> list[tuple[str, Any]]:
    """`{"optimizer": {"lr": 0.1}}` as `optimizer.lr`. What has keys that MLflow doesn't take is told as it is."""
    if not isinstance(value, dict):
        return [(prefix, value)]
    children = {f"{prefix}.{key}" if prefix else str(key): child for key, child in value.items()}
    if not all(map(_KEY.fullmatch, children)):
        return [(prefix, value)]
    return [pair for key, child in children.items() for pair in _flat(child, key)]


def is_written(folder: Path) -> bool:
    """Whether a device's result is whole: else it was not trained, or a stage is writing it at this moment."""
    return all((folder / file).is_file() for file in _RECORDS)


def training_document(name: str, device: records.DeviceLabel, results: Path) -> RunDocument | None:
    """Of one experiment on one device, from its folder under `results`; None where the device was unavailable."""
    folder = results / name / device
    learned = folder / records.LEARNED
    record = records.read_training(learned)
    if isinstance(record, records.Unavailable):
        return None
    result = _digest(*(folder / file for file in _RECORDS), text=f"{name}/{device}")
    timings = records.read_record(folder / records.TIMED / records.TIMINGS, records.Timings)
    dataset = dataset_facts(record.experiment.dataset, record.data_sha256, record.image_shape, record.class_names)
    facts = run_facts(name, device, record.experiment, timings.host, timings.packages, timings.git_commit, dataset)
    facts.tags.update({TAG_STATUS: record.status, "device.name": timings.device_name, "host.name": timings.host_name})
    history, seeds = records.read_history(learned), records.read_seeds(learned, record.experiment)
    points = [
        point
        for metrics, timing in zip(history, timings.epochs, strict=True)
        for point in epoch_points(metrics, timing, timings.training_image_count)
    ]
    summary, mirrored = _summary(timings), result
    artifacts = [pair for part in (records.LEARNED, records.TIMED) for pair in _artifacts(folder / part, part)]
    evaluation = results / name / records.EVALUATED / records.EVALUATION
    if scores := _scores(evaluation, record, seeds):
        artifacts.append((evaluation, records.EVALUATED))
        mirrored = _digest(evaluation, text=result)
        ours = {"accuracy": scores.test_accuracy, "loss": scores.test_loss, "macro_f1": scores.macro_f1}
        shown = scores.metrics | {key: value for key, value in ours.items() if value is not None}
        summary |= {f"test_{key}": value for key, value in shown.items()}
    ended_ms = _milliseconds(timings.epochs[-1].ended_at_unix_seconds)
    points += [Point("seed_validation_loss", run.history[-1].validation_loss, run.seed, ended_ms) for run in seeds]
    points += [Point(key, float(value), len(history), ended_ms) for key, value in summary.items() if value is not None]
    started_ms = _milliseconds(timings.started_at_unix_seconds)
    duration_ms = _milliseconds(timings.total_seconds)
    return RunDocument(
        facts, result, mirrored, points, artifacts, learned, bool(record.own_code), started_ms, ended_ms, duration_ms
    )


def _scores(path: Path, record: records.Training, seeds: Iterable[records.SeedRun]) -> records.DeviceEvaluation | None:
    """Return the scores of these weights; until `evaluate` has run, the file holds the previous training's."""
    return records.read_record(path, records.Evaluation).scores_of(record, seeds) if path.is_file() else None


def epoch_points(metrics: EpochMetrics, timing: EpochTiming, training_images: int) -> list[Point]:
    """Everything that is told of one epoch, at its end."""
    values = asdict(metrics) | asdict(timing) | {"images_per_second": training_images / timing.training_seconds}
    epoch, timestamp_ms = values.pop("epoch"), _milliseconds(values.pop("ended_at_unix_seconds"))
    return [Point(key, value, epoch, timestamp_ms) for key, value in values.items() if value is not None]


def _summary(timings: records.Timings) -> dict[str, float | None]:
    """What is told once, of the whole run."""
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
        **{f"median_step_{part}": seconds for part, seconds in parts.items()},
    }


def report_document(report: Path) -> RunDocument:
    """Of the comparison: the report as it is, with one metric a row and column of its table."""
    table = report / REPORT_TABLE
    artifacts = _artifacts(report, "report")
    digest = _digest(*(path for path, _ in artifacts))
    rows = list(csv.DictReader(table.read_text(encoding="utf-8").splitlines()))
    written_ms = _milliseconds(table.stat().st_mtime)
    points = [
        Point(f"{row['experiment']}/{row['device']}/{key}", float(row[key]), 0, written_ms)
        for row in rows
        for key in _COMPARED
        if row.get(key)  # a report of an earlier version has fewer
    ]
    tags = {**_SOURCE, TAG_STATUS: "compared"}
    tags |= {f"cause.{row['experiment']}.{row['device']}": row["cause"] for row in rows if row.get("cause")}
    return RunDocument(RunFacts("comparison", tags, {}, None), digest, digest, points, artifacts)


def _artifacts(folder: Path, name: str) -> list[Artifact]:
    """Every file below, each with its artifact folder: the same tree, under this name."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [(path, str(Path(name, path.parent.relative_to(folder)))) for path in files]


def _digest(*paths: Path, text: str = "") -> str:
    return sha256_of_bytes(json.dumps([text, *(sha256_of_bytes(path.read_bytes()) for path in paths)]).encode())


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
