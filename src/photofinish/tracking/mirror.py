"""A run's files in MLflow: each is sent once, and again only if it changed or was deleted there."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import numpy as np
from mlflow.entities import Dataset, DatasetInput, InputTag, LoggedModelOutput, Metric, Param, Run, RunTag
from mlflow.models import ModelSignature
from mlflow.tracking import MlflowClient
from mlflow.types import Schema, TensorSpec

from photofinish.files import sha256_of_bytes, sha256_of_file
from photofinish.processes import quick_imports
from photofinish.results import records
from photofinish.tracking import documents
from photofinish.tracking.documents import TAG_MIRRORED, Artifact, Point, RunDocument, RunFacts
from photofinish.tracking.store import Store

_MOST_METRICS_A_CALL = 1000
_MOST_TAGS_A_CALL = 100
_DIGEST_CHARACTERS = 36  # as many as MLflow takes
_REQUIREMENTS = ("mlflow", "numpy", "torch", "torchvision")
"""what it takes to load a logged model"""


def create_run(store: Store, facts: RunFacts, tags: dict[str, str], started_ms: int | None = None) -> str:
    """With the tags that it is found by: it has them from the first moment, if this is cut off in the next."""
    run = store.client.create_run(store.experiment_id, start_time=started_ms, tags=tags, run_name=facts.name)
    run_id = str(run.info.run_id)
    write_facts(store.client, run_id, facts)
    return run_id


def write_facts(client: MlflowClient, run_id: str, facts: RunFacts) -> None:
    """What the run doesn't show yet of its tags, parameters and data set."""
    run = client.get_run(run_id)
    tags = [RunTag(key, value) for key, value in facts.tags.items() if run.data.tags.get(key) != value]
    params = [Param(key, value) for key, value in facts.params.items() if key not in run.data.params]
    for start in range(0, max(len(tags), len(params)), _MOST_TAGS_A_CALL):
        part = slice(start, start + _MOST_TAGS_A_CALL)
        client.log_batch(run_id, tags=tags[part], params=params[part])
    if facts.dataset and not run.inputs.dataset_inputs:
        dataset = Dataset(
            name=facts.dataset.name,
            digest=facts.dataset.sha256[:_DIGEST_CHARACTERS],
            source_type="local",
            source=json.dumps({"uri": f"data/splits/{facts.dataset.name}"}),
            profile=json.dumps(facts.dataset.profile),
        )
        client.log_inputs(run_id, [DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])])


def write_points(client: MlflowClient, run_id: str, points: Iterable[Point]) -> None:
    """As metrics of the run, whatever it has of them."""
    metrics = [Metric(point.key, point.value, point.timestamp_ms, point.step) for point in points]
    for start in range(0, len(metrics), _MOST_METRICS_A_CALL):
        client.log_batch(run_id, metrics=metrics[start : start + _MOST_METRICS_A_CALL])


def mirror_run(store: Store, run_id: str, document: RunDocument) -> None:
    """Everything in the document, each thing once; the tag that says so comes last."""
    client = store.client
    write_facts(client, run_id, document.facts)
    _write_missing_points(client, run_id, document.points)
    run = client.get_run(run_id)
    _mirror_artifacts(store, run, document.artifacts)
    if document.learned and not _has_model(store, run):
        _log_model(store, run, document.learned, document.facts.tags)
    if document.note:
        client.set_tag(run_id, documents.TAG_NOTE, document.note)
    client.set_tag(run_id, documents.TAG_RESULT, document.result)
    client.set_terminated(run_id, "FINISHED", document.ended_ms)
    client.set_tag(run_id, TAG_MIRRORED, document.mirrored)


def is_complete(store: Store, run: Run, document: RunDocument) -> bool:
    """Whether MLflow shows all of it; artifacts in a folder of this machine may have been deleted."""
    if run.data.tags.get(TAG_MIRRORED) != document.mirrored or run.info.status != "FINISHED":
        return False
    if document.learned and not _has_model(store, run):
        return False
    return all(_is_there(store, run, artifact) for artifact in document.artifacts)


def _write_missing_points(client: MlflowClient, run_id: str, points: list[Point]) -> None:
    """MLflow keeps a step that is logged twice twice; a resumed run repeats the epochs after its checkpoint. Of a step
    with several values it shows the latest, so one that has changed comes after what is there."""
    latest: dict[tuple[str, int], Metric] = {}
    for key in {point.key for point in points} & client.get_run(run_id).data.metrics.keys():
        for metric in sorted(client.get_metric_history(run_id, key), key=lambda metric: metric.timestamp):
            latest[key, metric.step] = metric
    missing = []
    for point in points:
        there = latest.get((point.key, point.step))
        if there is None:
            missing.append(point)
        elif there.value != point.value and not (math.isnan(there.value) and math.isnan(point.value)):
            missing.append(replace(point, timestamp_ms=max(point.timestamp_ms, there.timestamp + 1)))
    write_points(client, run_id, missing)


def _mirror_artifacts(store: Store, run: Run, artifacts: list[Artifact]) -> None:
    """Folder by folder: the tag that names a folder's content comes last, so what was cut off is sent anew."""
    run_id = str(run.info.run_id)
    of_folder = itemgetter(1)
    for folder, group in groupby(sorted(artifacts, key=of_folder), key=of_folder):
        files = list(group)
        tag = f"{TAG_MIRRORED}.{folder}"
        named = [[path.name, sha256_of_file(path)] for path, _ in files]
        content = sha256_of_bytes(json.dumps(named).encode())
        is_sent = run.data.tags.get(tag) == content
        for artifact in files:
            if not is_sent or not _is_there(store, run, artifact):
                store.client.log_artifact(run_id, str(artifact[0]), folder)
        if not is_sent:
            store.client.set_tag(run_id, tag, content)


def _is_there(store: Store, run: Run, artifact: Artifact) -> bool:
    """Artifacts in a folder of this machine may have been deleted; a server is trusted to keep what it got."""
    path, folder = artifact
    if store.local_artifacts is None:
        return True
    return (store.local_artifacts / str(run.info.run_id) / "artifacts" / folder / path.name).is_file()


def _model_id(run: Run) -> str | None:
    return next((str(output.model_id) for output in run.outputs.model_outputs), None)


def _has_model(store: Store, run: Run) -> bool:
    model_id = _model_id(run)
    if model_id is None or store.local_artifacts is None:
        return model_id is not None
    return (store.local_artifacts / "models" / model_id / "artifacts" / "MLmodel").is_file()


def _log_model(store: Store, run: Run, learned: Path, tags: dict[str, str]) -> None:
    """As `mlflow.pytorch.load_model` opens it anywhere, or give the run's model its files back.

    It becomes an output of its run when it is whole, so one that was cut off is logged anew.
    """
    with quick_imports():  # of torch: seconds
        from mlflow.pytorch import log_model

        from photofinish.results.learned import load_network

    record = records.read_record(learned / records.RECORD, records.Training)
    network = load_network(learned, record).eval()
    client, run_id, known_id = store.client, run.info.run_id, _model_id(run)
    model_id = known_id or (
        client.create_logged_model(
            store.experiment_id, name="model", source_run_id=run_id, params={"model": record.experiment.model.name}
        ).model_id
    )
    log_model(
        network,
        model_id=model_id,
        serialization_format="pickle",  # MLflow's default traces the network with an example of its input
        signature=ModelSignature(
            inputs=Schema([TensorSpec(np.dtype(np.float32), (-1, *record.image_shape))]),
            outputs=Schema([TensorSpec(np.dtype(np.float32), (-1, len(record.class_names)))]),
        ),
        metadata={"mean": list(record.mean), "std": list(record.std), "class_names": list(record.class_names)},
        pip_requirements=[f"{package}=={tags[f'package.{package}']}" for package in _REQUIREMENTS],
    )
    if known_id is None:
        client.log_outputs(run_id, [LoggedModelOutput(model_id, step=record.experiment.epochs)])
