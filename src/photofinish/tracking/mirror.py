"""A run's content in MLflow: everything is sent once, and again only if it changed or was deleted there."""

from __future__ import annotations

import math
import platform
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
from mlflow import entities
from mlflow.entities import DatasetInput, InputTag, LoggedModelOutput, LoggedModelStatus, Metric, Run
from mlflow.models import Model, ModelSignature
from mlflow.tracking import MlflowClient
from mlflow.types import Schema, TensorSpec

from photofinish.config.networks import CustomModel
from photofinish.custom_code import Reference, imports_forgotten
from photofinish.results import records
from photofinish.source_code import PACKAGE, users_files
from photofinish.tracking import documents
from photofinish.tracking.documents import OURS, TAG_CURRENT, TAG_MIRRORED, TAG_NOTE, Point, RunDocument, RunFacts
from photofinish.tracking.store import Store

_METRICS_PER_CALL = 1000
_TAGS_PER_CALL = 100
_AT = "@"
"""before the host in a run's name; no experiment's name has it"""
_HARDWARE = ("host.cpu", "host.usable_cores", "host.accelerator")
_REQUIREMENTS = ("mlflow", "numpy", "torch", "torchvision")


def create_run(store: Store, facts: RunFacts, tags: dict[str, str], started_ms: int | None = None) -> str:
    """Create a run, with all its tags in the one call: if this process ends now, the next finds the run by them.

    In a store that others may share, the run's name has its host. The user is only known for this one.
    """
    here = platform.node()
    host = facts.tags.get("host.name", "" if documents.TAG_RESTORED in tags else here)
    user = {"mlflow.user": psutil.Process().username()} if host == here else {}
    name = f"{facts.name}{_AT}{host}" if store.local_artifacts is None and host else facts.name
    tags = {**user, **facts.tags, **tags}
    run = store.client.create_run(store.experiment_id, start_time=started_ms, tags=tags, run_name=name)
    run_id = str(run.info.run_id)
    write_facts(store.client, run_id, facts)
    return run_id


def write_facts(client: MlflowClient, run_id: str, facts: RunFacts) -> None:
    """Write the tags, parameters and data set that the run does not have yet."""
    run, wanted = client.get_run(run_id), dict(facts.tags)
    set_note(client, run, wanted.pop(TAG_NOTE, ""))
    tags = [entities.RunTag(key, value) for key, value in wanted.items() if run.data.tags.get(key) != value]
    params = [entities.Param(key, value) for key, value in facts.params.items() if key not in run.data.params]
    for start in range(0, max(len(tags), len(params)), _TAGS_PER_CALL):
        part = slice(start, start + _TAGS_PER_CALL)
        client.log_batch(run_id, tags=tags[part], params=params[part])
    if facts.dataset and not run.inputs.dataset_inputs:
        dataset = DatasetInput(entities.Dataset(**facts.dataset), [InputTag("mlflow.data.context", "training")])
        client.log_inputs(run_id, [dataset])


def set_note(client: MlflowClient, run: Run, text: str) -> None:
    """Set or remove the run's description, unless a user wrote it."""
    before, run_id = run.data.tags.get(TAG_NOTE, ""), str(run.info.run_id)
    if before == text or (before and not before.startswith(OURS)):
        return
    if text:
        client.set_tag(run_id, TAG_NOTE, text)
    else:
        client.delete_tag(run_id, TAG_NOTE)


def write_points(client: MlflowClient, run_id: str, points: Iterable[Point], model_id: str | None = None) -> None:
    """Log metrics of the run, and of its model if one is named."""
    metrics = [Metric(point.key, point.value, point.timestamp_ms, point.step, model_id) for point in points]
    for start in range(0, len(metrics), _METRICS_PER_CALL):
        client.log_batch(run_id, metrics=metrics[start : start + _METRICS_PER_CALL])


def mirror_run(store: Store, run_id: str, document: RunDocument) -> None:
    """Bring a run up to date with a document; the tag of a complete run comes last."""
    client = store.client
    write_facts(client, run_id, document.facts)
    for earlier in _replaced(store, document.facts):
        client.set_tag(earlier.info.run_id, TAG_CURRENT, "false")
    client.set_tag(run_id, TAG_CURRENT, "true")
    run = client.get_run(run_id)
    model_id = (_model_of(run) or _create_model(store, run, document)) if document.learned else None
    _write_missing_points(client, run, document.points, model_id)
    for path, name in document.artifacts:
        tag, content = f"{TAG_MIRRORED}.{name}", documents.digest(path)
        if run.data.tags.get(tag) == content and _is_there(store, run, path, name):
            continue
        send = client.log_artifacts if path.is_dir() else client.log_artifact
        send(run_id, str(path), name)
        client.set_tag(run_id, tag, content)
    if document.learned and model_id and not _is_ready(store, model_id):
        with imports_forgotten():
            _write_model(store, run, model_id, document.learned, document.facts.tags)
    client.set_tag(run_id, documents.TAG_RESULT, document.result)
    # The job's end, not that of the measurements after it, or the time when MLflow was back.
    ended_ms = run.info.start_time + document.duration_ms if document.duration_ms is not None else None
    client.set_terminated(run_id, "FINISHED", ended_ms)
    client.set_tag(run_id, TAG_MIRRORED, document.mirrored)


def is_whole(store: Store, run: Run, document: RunDocument) -> bool:
    """Return True if MLflow has all of the document."""
    if run.data.tags.get(TAG_MIRRORED) != document.mirrored or run.info.status != "FINISHED":
        return False
    if document.learned and not ((model_id := _model_of(run)) and _is_ready(store, model_id)):
        return False
    return all(_is_there(store, run, path, name) for path, name in document.artifacts)


def _replaced(store: Store, facts: RunFacts) -> Iterator[Run]:
    """Yield the runs whose result this one replaces; in a store that others may share, only those of this hardware."""
    for run in store.find_runs(f"tags.`{TAG_CURRENT}` = 'true' and attributes.run_name LIKE '{facts.name}%'"):
        is_same_name = run.info.run_name.partition(_AT)[0] == facts.name
        is_same_hardware = all(run.data.tags.get(tag) == facts.tags.get(tag) for tag in _HARDWARE)
        if is_same_name and (store.local_artifacts or is_same_hardware):
            yield run


def _write_missing_points(client: MlflowClient, run: Run, points: list[Point], model_id: str | None) -> None:
    """Log the points that the run lacks: MLflow keeps a step that is logged twice twice.

    It shows the latest of several values of a step, so a changed value gets a later time. Values that a run has once,
    test scores among them, and those of the last epoch are the model's too.
    """
    run_id = str(run.info.run_id)
    latest: dict[tuple[str, int], Metric] = {}
    for key in {point.key for point in points} & run.data.metrics.keys():
        for metric in sorted(client.get_metric_history(run_id, key), key=lambda metric: metric.timestamp):
            latest[key, metric.step] = metric
    missing = []
    for point in points:
        before = latest.get((point.key, point.step))
        if before is None:
            missing.append(point)
        elif before.value != point.value and not (math.isnan(before.value) and math.isnan(point.value)):
            missing.append(replace(point, timestamp_ms=max(point.timestamp_ms, before.timestamp + 1)))
    steps_of_model = (documents.ONCE, max((point.step for point in points), default=documents.ONCE))
    write_points(client, run_id, [point for point in missing if point.step not in steps_of_model])
    write_points(client, run_id, [point for point in missing if point.step in steps_of_model], model_id)


def _is_there(store: Store, run: Run, path: Path, name: str) -> bool:
    """Return True if this machine's folder of artifacts has the files; a server is trusted to keep them."""
    if store.local_artifacts is None:
        return True
    folder = store.local_artifacts / str(run.info.run_id) / "artifacts" / name
    return all((folder / file).is_file() for file in documents.files_of(path))


def _model_of(run: Run) -> str | None:
    return next((str(output.model_id) for output in run.outputs.model_outputs), None)


def _is_ready(store: Store, model_id: str) -> bool:
    if store.client.get_logged_model(model_id).status != LoggedModelStatus.READY:
        return False
    artifacts = store.local_artifacts
    return artifacts is None or (artifacts / "models" / model_id / "artifacts" / "MLmodel").is_file()


def _create_model(store: Store, run: Run, document: RunDocument) -> str:
    """Create the model as an output of the run, so that the next sync finds and completes an unfinished one."""
    facts = document.facts
    name, run_id = facts.name.replace("/", "-"), str(run.info.run_id)  # MLflow refuses a slash
    tags = {key: value for key, value in run.data.tags.items() if key.startswith(("mlflow.user", "mlflow.source."))}
    model = store.client.create_logged_model(store.experiment_id, name, run_id, tags, facts.params)
    model_id = str(model.model_id)
    store.client.log_outputs(run_id, [LoggedModelOutput(model_id, step=max(point.step for point in document.points))])
    return model_id


def _write_model(store: Store, run: Run, model_id: str, learned: Path, tags: dict[str, str]) -> None:
    """Write the model for `mlflow.pytorch.load_model` and `mlflow models serve`."""
    from mlflow.pytorch import save_model  # imports torch: seconds

    from photofinish.results.learned import load_network
    from photofinish.tracking.served import as_served

    record = records.read_record(learned / records.RECORD, records.Training)
    needed = {package: tags[f"package.{package}"] for package in _REQUIREMENTS}
    needed |= {
        name.removeprefix(PACKAGE): is_at for name, is_at in record.custom_code.items() if name.startswith(PACKAGE)
    }
    shape, network = record.image_shape, load_network(learned, record)
    # JSON becomes floats, which can be checked: as bytes, 0.5 would become 0.
    example = np.zeros((1, *shape), np.int64) if record.dtype == "int64" else np.full((1, *shape), 0.5, np.float32)
    client, run_id = store.client, str(run.info.run_id)
    place = client.get_logged_model(model_id).artifact_location
    with tempfile.TemporaryDirectory() as folder:
        own_files = _copied(record, Path(folder, "own")) if isinstance(record.experiment.model, CustomModel) else []
        save_model(  # not log_model, which reads the history of every metric and loads the saved model
            as_served(network, record.mean, record.std, record.dtype, len(shape)).eval(),
            path := str(Path(folder, "model")),
            mlflow_model=Model(artifact_path=place, run_id=run_id, model_uuid=model_id, model_id=model_id),
            serialization_format="pickle",  # MLflow's default traces the network with an example of its input
            signature=ModelSignature(
                inputs=Schema([TensorSpec(example.dtype, (-1, *shape))]),
                outputs=Schema([TensorSpec(np.dtype(np.float32), (-1, len(record.class_names)))]),
            ),
            input_example=example,
            metadata={"mean": list(record.mean), "std": list(record.std), "class_names": list(record.class_names)},
            pip_requirements=[f"{package}=={version}" for package, version in sorted(needed.items())],
            code_paths=own_files or None,
        )
        client.log_model_artifacts(model_id, path)
    client.finalize_logged_model(model_id, LoggedModelStatus.READY)


def _copied(record: records.Training, folder: Path) -> list[str]:
    """Copy the files of a custom network to where Python finds them from `folder`; return what is directly in it."""
    files, _ = users_files([Reference.of(record.experiment.model.name)])
    for within, path in files.items():
        place = folder / within
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)
    return sorted(map(str, folder.glob("*")))
