"""A run's files in MLflow: each is sent once, and again only if it changed or was deleted there."""

from __future__ import annotations

import json
import math
import os
import platform
import tempfile
import time
from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import psutil
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, Run, RunTag, ViewType
from mlflow.tracking import MlflowClient

from photofinish.files import sha256_of_bytes, sha256_of_file
from photofinish.results import records
from photofinish.tracking import documents
from photofinish.tracking.documents import TAG_MIRRORED, Artifact, Point, RunDocument, RunFacts
from photofinish.tracking.model_artifact import MODEL, log_model
from photofinish.tracking.store import Store


def mirror_artifacts(store: Store, run: Run, artifacts: list[Artifact]) -> None:
    """Folder by folder: the tag that names a folder's content comes last, so what was cut off is sent anew."""
    run_id = str(run.info.run_id)
    for folder, group in groupby(sorted(artifacts, key=_folder), key=_folder):
        paths = [path for path, _ in group]
        tag, content = f"{TAG_MIRRORED}.{folder}", _digest(paths)
        is_sent = run.data.tags.get(tag) == content
        for path in paths:
            if not is_sent or not is_there(store, run_id, (path, folder)):
                store.client.log_artifact(run_id, str(path), folder)
        if not is_sent:
            store.client.set_tag(run_id, tag, content)


def is_there(store: Store, run_id: str, artifact: Artifact) -> bool:
    """Artifacts in a folder of this machine may have been deleted; a server is trusted to keep what it got."""
    path, folder = artifact
    if store.local_artifacts is None:
        return True
    return (store.local_artifacts / run_id / "artifacts" / folder / path.name).is_file()


def _folder(artifact: Artifact) -> str:
    return artifact[1]


def _digest(paths: list[Path]) -> str:
    return sha256_of_bytes(json.dumps([[path.name, sha256_of_file(path)] for path in paths]).encode())


_MOST_METRICS_A_CALL = 1000
_MOST_TAGS_A_CALL = 100
_START_ERROR_MS = 1000  # psutil knows the start of a process to the second only
_MOST_SILENT_DAYS = 7
"""without an epoch: then a process of another machine, which can't be looked for, is taken for gone"""
_DIGEST_CHARACTERS = 36  # as many as MLflow takes


def find_runs(store: Store, filter_string: str = "") -> list[Run]:
    """Every run of this project that matches, the newest first."""
    found: list[Run] = []
    token = None
    while True:
        page = store.client.search_runs(
            [store.experiment_id], filter_string, ViewType.ACTIVE_ONLY, max_results=500, page_token=token
        )
        found += page
        token = page.token
        if not token:
            return found


def create_run(store: Store, facts: RunFacts, tags: dict[str, str], started_ms: int | None = None) -> str:
    """With the tags that it is found by: it has them from the first moment, if this is cut off in the next."""
    run = store.client.create_run(store.experiment_id, start_time=started_ms, tags=tags, run_name=facts.name)
    run_id = str(run.info.run_id)
    write_facts(store.client, run_id, facts)
    return run_id


def write_facts(client: MlflowClient, run_id: str, facts: RunFacts) -> None:
    run = client.get_run(run_id)
    tags = [RunTag(key, value) for key, value in facts.tags.items() if run.data.tags.get(key) != value]
    params = [Param(key, value) for key, value in facts.params.items() if key not in run.data.params]
    for start in range(0, max(len(tags), len(params)), _MOST_TAGS_A_CALL):
        part = slice(start, start + _MOST_TAGS_A_CALL)
        client.log_batch(run_id, tags=tags[part], params=params[part])
    if facts.dataset and not run.inputs.dataset_inputs:
        client.log_inputs(run_id, [_dataset_input(facts.dataset)])


def write_points(client: MlflowClient, run_id: str, points: Iterable[Point]) -> None:
    metrics = [Metric(point.key, point.value, point.timestamp_ms, point.step) for point in points]
    for start in range(0, len(metrics), _MOST_METRICS_A_CALL):
        client.log_batch(run_id, metrics=metrics[start : start + _MOST_METRICS_A_CALL])


def write_missing_points(client: MlflowClient, run_id: str, points: list[Point]) -> None:
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


def mirror_run(store: Store, run_id: str, document: RunDocument, pickled: Path | None = None) -> None:
    """Everything in the document, each thing once; the tag that says so comes last."""
    client = store.client
    write_facts(client, run_id, document.facts)
    write_missing_points(client, run_id, document.points)
    run = client.get_run(run_id)
    mirror_artifacts(store, run, document.artifacts)
    model_id = _model_id(run)
    if document.learned and not _has_model(store, model_id):
        _mirror_model(store, run_id, model_id, document, pickled)
    if document.note:
        client.set_tag(run_id, documents.TAG_NOTE, document.note)
    client.set_tag(run_id, documents.TAG_RESULT, document.result)
    client.set_terminated(run_id, "FINISHED", document.ended_ms)
    client.set_tag(run_id, documents.TAG_MIRRORED, document.mirrored)


def is_complete(store: Store, run: Run, document: RunDocument) -> bool:
    """Whether MLflow shows all of it; artifacts in a folder of this machine may have been deleted."""
    if run.data.tags.get(documents.TAG_MIRRORED) != document.mirrored or run.info.status != "FINISHED":
        return False
    if document.learned and not _has_model(store, _model_id(run)):
        return False
    return all(is_there(store, str(run.info.run_id), artifact) for artifact in document.artifacts)


def find_unfinished_run(store: Store, document: RunDocument) -> Run | None:
    """The run this training began in MLflow and could not finish there, for want of a server."""
    tags = document.facts.tags
    if document.started_ms is None or document.ended_ms is None:
        return None
    wanted = {tag: tags[tag] for tag in (documents.TAG_EXPERIMENT, documents.TAG_DEVICE)}
    for run in find_runs(store, " and ".join(f"tags.`{tag}` = '{value}'" for tag, value in wanted.items())):
        tag = run.data.tags.get(documents.TAG_PROCESS)
        if not tag or run.info.status == "FINISHED":
            continue
        host, _, created_at = json.loads(tag)
        if (
            host == tags["host.name"]
            and document.started_ms - _START_ERROR_MS <= created_at * 1000 <= document.ended_ms
        ):
            return run
    return None


def process_tag() -> str:
    """Names this process so that another can tell whether it still lives."""
    return json.dumps([platform.node(), os.getpid(), psutil.Process().create_time()])


def is_of_this_host(run: Run) -> bool:
    tag = run.data.tags.get(documents.TAG_PROCESS)
    return tag is not None and json.loads(tag)[0] == platform.node()


def last_step(client: MlflowClient, run_id: str, key: str, default: int) -> int:
    return max((metric.step for metric in client.get_metric_history(run_id, key)), default=default)


def is_live(run: Run) -> bool:
    """Whether a process of this machine is still writing it."""
    tag = run.data.tags.get(documents.TAG_PROCESS)
    return run.info.status == "RUNNING" and bool(tag) and not _is_gone(*json.loads(tag))


def close_abandoned_runs(store: Store) -> None:
    """A run whose process is gone will never end by itself: SIGKILL and power cuts leave it RUNNING for ever."""
    for run in find_runs(store, "attributes.status = 'RUNNING'"):
        tag = run.data.tags.get(documents.TAG_PROCESS)
        if tag and (_is_gone(*json.loads(tag)) or _is_long_silent(store, run, *json.loads(tag))):
            store.client.set_terminated(run.info.run_id, "KILLED")


def _is_long_silent(store: Store, run: Run, host: str, _process_id: int, created_at: float) -> bool:
    """On another machine, perhaps one that is no more; if it lives after all, its end still completes the run."""
    longest_ms = _MOST_SILENT_DAYS * 24 * 3600 * 1000
    if host == platform.node() or time.time() * 1000 - created_at * 1000 < longest_ms:
        return False
    epochs = store.client.get_metric_history(run.info.run_id, "training_loss")
    last_ms = max((metric.timestamp for metric in epochs), default=0)
    return time.time() * 1000 - last_ms >= longest_ms


def _is_gone(host: str, process_id: int, created_at: float) -> bool:
    if host != platform.node():
        return False
    try:
        return abs(psutil.Process(process_id).create_time() - created_at) > 1
    except psutil.NoSuchProcess:
        return True


def _model_id(run: Run) -> str | None:
    return next((str(output.model_id) for output in run.outputs.model_outputs), None)


def _has_model(store: Store, model_id: str | None) -> bool:
    if model_id is None or store.local_artifacts is None:
        return model_id is not None
    return (store.local_artifacts / "models" / model_id / "artifacts" / "MLmodel").is_file()


def _mirror_model(store: Store, run_id: str, model_id: str | None, document: RunDocument, pickled: Path | None) -> None:
    learned, tags = document.learned, document.facts.tags
    if learned is None:
        return
    record = records.read_record(learned / records.RECORD, records.Training)
    versions = {key.removeprefix("package."): value for key, value in tags.items() if key.startswith("package.")}
    if pickled:
        log_model(store, run_id, model_id, pickled, record, versions)
        return
    from photofinish.results.learned import (
        load_network,
        pickle_network,  # imports torch: seconds
    )

    with tempfile.TemporaryDirectory() as folder:
        rebuilt = Path(folder) / f"{MODEL}.pth"
        pickle_network(load_network(learned, record), rebuilt)
        log_model(store, run_id, model_id, rebuilt, record, versions)


def _dataset_input(facts: documents.DatasetFacts) -> DatasetInput:
    dataset = Dataset(
        name=facts.name,
        digest=facts.sha256[:_DIGEST_CHARACTERS],
        source_type="local",
        source=json.dumps({"uri": f"data/splits/{facts.name}"}),
        profile=json.dumps(facts.profile),
    )
    return DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])
