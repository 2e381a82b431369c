"""Content of MLflow's runs, computed from records only."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from mlflow.entities import Dataset, DatasetInput, InputTag, Metric
from mlflow.utils.mlflow_tags import MLFLOW_DATASET_CONTEXT

from photofinish.config.experiment import Experiment
from photofinish.data import PartName
from photofinish.errors import UserError
from photofinish.files import sha256_of_bytes
from photofinish.machine.fingerprint import GpuTarget
from photofinish.nested import dotted
from photofinish.results import records
from photofinish.results.job import Job
from photofinish.results.measured import (
    MEASURED,
    MEASURED_FOLDER,
    Measured,
    TrainedRecords,
    read_measured,
    read_trained,
)
from photofinish.results.measured_jobs import job_of_script
from photofinish.results.trained import DeviceEvaluation, DeviceLabel, SeedRun, Where
from photofinish.results.training_jobs import job_of_training
from photofinish.tracking.run_metrics import (
    KEY,
    job_metrics,
    milliseconds,
    script_metrics,
    test_scores,
    training_metrics,
)
from photofinish.wording import listed, measure_again, seconds

COMPARISON = "comparison"
"""Name and identity of the single run that each `compare` updates."""
REPORT = "report"
"""Artifact folder of the comparison."""
REPORT_TEXT = "comparison.md"
REPORT_TABLE = "comparison.csv"
REPORT_ANSWERS = "answers.json"
_MOST_NOTE_CHARACTERS = 4000
"""MLflow keeps 5,000 characters of a tag in some stores."""
TAG_EXPERIMENT = "photofinish.experiment"
TAG_DEVICE = "photofinish.device"
TAG_VERDICT = "verdict"
TAG_TIME = "time"
"""Tag with the time of the whole job on the run's device, with ~ if it is extrapolated."""
TAG_SAVES = "saves"
"""Tag with the time that the GPU of the verdict saves after a rented machine's setup."""
TAG_HOST = "host.name"
TAG_BUSY = "photofinish.busy"
"""Tag with the load that makes times unreliable."""
TAG_CURRENT = "photofinish.current"
"""Tag that is true for the experiment's result on disk, and false for earlier results."""
TAG_TRAINING_KEY = "sha256.training_key"  # MLflow sorts by name, so these follow all others
TAG_RESULT = "sha256.result"
TAG_MIRRORED = "sha256.mirrored"
TAG_NOTE = "mlflow.note.content"
TAG_PROCESS = "photofinish.process"
OURS = "**photofinish**"
"""Prefix of each description that photofinish writes."""
_DATASETS = Path("data/plan/datasets")
_DIGEST_CHARACTERS = 16
"""MLflow takes 36."""
_SOURCE = {"mlflow.source.name": "dvc repro", "mlflow.source.type": "LOCAL"}


Answered = tuple[str, str, float]
"""Identity of a training: experiment, device, and start."""
Lines = tuple[dict[str, str], str]
"""Tags of an answer, and both lines of it."""
Files = list[tuple[Path, str]]
"""Files, each with its artifact folder."""


@dataclass(frozen=True)
class RunDocument:
    name: str
    tags: dict[str, str]
    result: str
    """Identity of the run: the sha256 of a training's records."""
    mirrored: str
    """SHA-256 of the mutable files. A run with this tag is complete."""
    params: dict[str, str] = field(default_factory=dict)
    dataset: DatasetInput | None = None
    metrics: list[Metric] = field(default_factory=list)
    files: Files = field(default_factory=list)
    model: Path | None = None
    """Folder with a training's weights."""
    started_ms: int | None = None
    duration_ms: int = 0
    """Duration of the job, or 0 for a comparison, which each run of `compare` replaces."""


def run_params(experiment: Experiment, device: str) -> dict[str, str]:
    """Return an experiment's settings as MLflow's parameters, without those that are not set."""
    # A plan of the experiment has more fields, which are no settings.
    settings = experiment.model_dump(mode="json", include=set(Experiment.model_fields))
    values = dotted(settings, may_be_name=KEY.fullmatch)
    params = {key: str(value) for key, value in values if value is not None}
    return params | {"device": device}


def dataset_input(name: str, sha256: str, samples: Mapping[PartName, int]) -> DatasetInput:
    """Return a data set as MLflow's input of a run. Its source is in the plan, if that has it."""
    plan = _DATASETS / f"{name}.json"
    settings = json.loads(plan.read_text(encoding="utf-8"))["dataset"] if plan.is_file() else {}
    source = {key: value for key, value in settings.items() if value is not None}
    dataset = Dataset(
        name=name,
        digest=sha256[:_DIGEST_CHARACTERS],
        source_type=source.get("source", "unknown"),
        source=json.dumps(source),
        profile=json.dumps({"num_rows": sum(samples.values()), **samples}) if samples else None,
    )
    return DatasetInput(dataset, [InputTag(MLFLOW_DATASET_CONTEXT, "training")])


def training_document(
    name: str,
    device: DeviceLabel,
    results: Path,
    answers: Mapping[Answered, Lines] = MappingProxyType({}),
) -> RunDocument | None:
    """Return the document of an experiment's training on a device, with its answer if available.

    Returns None if the device was unavailable or the result is incomplete.
    """
    folder = results / name / device
    model, timings_folder = folder / records.MODEL, folder / records.TIMINGS_FOLDER
    written_last = (model / records.RECORD, timings_folder / records.TIMINGS)
    if not all(file.is_file() for file in written_last):
        return None
    record = records.read_training(model)
    if isinstance(record, records.Unavailable):
        return None
    experiment = record.experiment
    history = records.read_history(model)
    seeds = records.read_seeds(model, experiment)
    times = records.read_record(timings_folder / records.TIMINGS, records.TrainingTimes)
    steps, measured = _steps(folder)
    scores, evaluated = _scores(results / name / records.EVALUATED, record, seeds)
    result = mirrored = _digest(f"{name}/{device}", *written_last)
    for path, _ in [*measured, *evaluated]:
        mirrored = _digest(mirrored, path)
    job = job_of_training(TrainedRecords(name, record, times, steps))
    values, quality = job_metrics(job), ""
    values["job_seconds"] = job.whole_seconds if job.untimed_epochs else None
    if scores:
        values |= test_scores(scores)
        quality = f": {scores.in_words}"
    note = _note(experiment, job, quality)
    key = records.training_key(name, times.identity)
    document = _document(job, "train", times, key, note, result, mirrored, answers)
    written = [*_files(model, records.MODEL), *_files(timings_folder, records.TIMINGS_FOLDER)]
    return replace(
        document,
        params=run_params(experiment, device),
        dataset=dataset_input(experiment.dataset, record.data_sha256, record.samples),
        metrics=[*training_metrics(history, times, seeds, values)],
        files=[*written, *measured, *evaluated],
        model=model,
    )


def _steps(folder: Path) -> tuple[Measured | None, Files]:
    """Return a device's steps and their file, if `measure` has measured them."""
    file = folder / MEASURED_FOLDER / MEASURED
    try:
        if file.is_file():
            return read_trained(folder)[1], [(file, MEASURED_FOLDER)]
    except UserError as error:  # it is of another training, and not measured again yet
        name = f"{folder.parent.name}/{folder.name}"
        print(f"MLflow: {name} is logged without its steps: {error}", file=sys.stderr)
    return None, []


def _scores(
    folder: Path, record: records.TrainingRecord, seeds: Iterable[SeedRun]
) -> tuple[DeviceEvaluation | None, Files]:
    """Return the scores of a training and their file, if `evaluate` has scored these weights."""
    file = folder / records.EVALUATION
    if not file.is_file():
        return None, []
    scores = records.read_record(file, records.Evaluation).scores_of(record, seeds)
    return scores, [(file, records.EVALUATED)] if scores else []


def _document(
    job: Job,
    stage: Literal["train", "script"],
    process: Where,
    training_key: str,
    note: str,
    result: str,
    mirrored: str,
    answers: Mapping[Answered, Lines],
) -> RunDocument:
    """Return the document of a run that trained, still without parameters, metrics and files."""
    # Skip the answer about an earlier training.
    name, device = job.name, job.device
    columns, lines = answers.get((name, device, job.started_at_unix_seconds), ({}, ""))
    mark = "~" if job.untimed_epochs else ""
    columns = columns | {TAG_TIME: f"{mark}{seconds(job.whole_seconds)}"}
    note = f"{lines}\n\n{note}".strip()
    mirrored = _digest(json.dumps([mirrored, columns, lines]))
    tags = run_tags(name, device, job.host_name, training_key)
    tags |= _machine_tags(process) | columns
    if job.busy:
        tags[TAG_BUSY] = listed(job.busy)
        command = measure_again([f"{stage}-{device}@{name}"])
        note += f" The machine was busy, so its times are unreliable. Measure again: `{command}`"
    return RunDocument(
        name=f"{name}/{device}",
        tags=tags | {"photofinish.status": "trained", TAG_NOTE: note},
        result=result,
        mirrored=mirrored,
        started_ms=milliseconds(job.started_at_unix_seconds),
        duration_ms=milliseconds(job.total_seconds),
    )


def script_document(
    name: str, device: DeviceLabel, results: Path, answers: Mapping[Answered, Lines]
) -> RunDocument | None:
    """Return the document of a script's run on a device, or None if it did not run."""
    file = results / name / device / MEASURED_FOLDER / MEASURED
    measured = read_measured(file) if file.is_file() else None
    if not isinstance(measured, Measured) or measured.script is None:
        return None
    job, identity = job_of_script(measured), _digest(f"{name}/{device}", file)
    command = measured.script.command
    note = f"{OURS}: {job.device_name} ran `{command}` in {seconds(job.total_seconds)}."
    key = records.training_key(name, identity)
    document = _document(job, "script", measured, key, note, identity, identity, answers)
    return replace(
        document,
        params={"command": command, "device": device},
        metrics=[*script_metrics(job)],
        files=[(file, records.TIMINGS_FOLDER)],
    )


def answers_of(report: Path) -> dict[Answered, Lines]:
    """Return the report's answer about each training, or an empty dict before the first report."""
    table, answers = report / REPORT_TABLE, {}
    if table.is_file():
        found = json.loads((report / REPORT_ANSWERS).read_text(encoding="utf-8"))
        if any("lines" not in answer for answer in found["answers"].values()):
            return {}  # a report of an older photofinish
        shown = {next(iter(row.values())): row for row in found["overview"]}
        for row in csv.DictReader(table.read_text(encoding="utf-8").splitlines()):
            name = row["experiment"]
            began = float(row["measured_at_unix_seconds"] or 0)
            answer = found["answers"][name]
            lines = answer["lines"]
            columns = {
                TAG_VERDICT: lines[0].replace(".", ":").partition(":")[0],
                TAG_SAVES: "" if answer.get("jobs", 1) > 1 else shown[name].get("saves", ""),
            }
            answers[name, row["device"], began] = columns, "\n\n".join(lines)
    return answers


def run_tags(name: str, device: str, host: str, training_key: str) -> dict[str, str]:
    """Return the tags that a run has from its start."""
    own = {TAG_EXPERIMENT: name, TAG_DEVICE: device, TAG_HOST: host}
    return {**own, TAG_TRAINING_KEY: training_key, **_SOURCE}


def _machine_tags(process: Where) -> dict[str, str]:
    host, tags = process.host, {"device.name": process.device_name}
    if host.cpu and host.software:
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
    tags |= {f"package.{package}": version for package, version in process.packages.items()}
    if process.git_commit:
        commit, _, dirty = process.git_commit.partition("-")
        tags |= {"mlflow.source.git.commit": commit, "git.dirty": str(bool(dirty)).lower()}
    return tags


def _note(experiment: Experiment, job: Job, quality: str) -> str:
    text = (
        f"{OURS}: {experiment.model.name} trained on {experiment.dataset}, using"
        f" {job.device_name}{quality}. {round(job.timed.done)} epochs of"
        f" {seconds(job.median_epoch_seconds)}, {seconds(job.total_seconds)} in all."
    )
    if job.untimed_epochs:
        text += (
            f" The whole job takes {seconds(job.whole_seconds)}, extrapolated from"
            f" {round(job.timed.done)} of {round(job.epochs)} epochs."
        )
    return text


def report_document(report: Path) -> RunDocument:
    """Describe the comparison: the report's files, and its answers as the description."""
    note = (report / REPORT_TEXT).read_text(encoding="utf-8")[:_MOST_NOTE_CHARACTERS]
    # Markdown shows no table that is cut within a row.
    answers = note.rpartition("\n")[0].removeprefix("# photofinish").strip()
    tags = {**_SOURCE, "photofinish.status": "compared", TAG_NOTE: f"{OURS}: {answers}"}
    files = _files(report, REPORT)
    mirrored = _digest(json.dumps([str(path) for path, _ in files]), *(path for path, _ in files))
    return RunDocument(COMPARISON, tags, COMPARISON, mirrored, files=files)


def _files(folder: Path, name: str) -> Files:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return [(path, (Path(name) / path.relative_to(folder).parent).as_posix()) for path in paths]


def _digest(text: str, *paths: Path) -> str:
    contents = [sha256_of_bytes(path.read_bytes()) for path in paths]
    return sha256_of_bytes(json.dumps([text, *contents]).encode())
