"""What writes to MLflow: the functions that `client.Tracker` calls in its process, and `ui`'s sync.

A run is sent once, and again only if its content changed or was deleted in MLflow.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import platform
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import psutil
from mlflow.entities import LoggedModelStatus, Metric, Param, Run, RunTag
from mlflow.tracking import MlflowClient

from photofinish.config.experiment import Experiment
from photofinish.data import PartName
from photofinish.errors import UserError
from photofinish.files import is_copy, project_root, state_folder
from photofinish.results import EpochMetrics, EpochTiming
from photofinish.results.measured import MEASURED_FOLDER
from photofinish.results.records import EVALUATED
from photofinish.results.trained import DEVICE_LABELS, DeviceLabel
from photofinish.tracking import documents, first_line
from photofinish.tracking.run_metrics import epoch_metrics
from photofinish.tracking.store import Store, close_abandoned_runs, is_live, open_store, process_tag

_VIEW = "photofinish"
"""Key of the first view of MLflow's page of runs, as its button *Share* creates it."""
_VERDICT = f"tags.`{documents.TAG_VERDICT}`"
_COLUMNS = (
    _VERDICT,
    "params.`device`",
    f"tags.`{documents.TAG_TIME}`",
    f"tags.`{documents.TAG_SAVES}`",
    "metrics.`test_accuracy`",
)
_HARDWARE = ("host.cpu", "host.usable_cores", "host.accelerator")
_live: dict[str, int] = {}
"""Run of the current training, by its id, with the last epoch that MLflow has of it."""


def sync_all(
    store: Store, names: list[str], results: Path, report: Path, *, with_models: bool = True
) -> int:
    """Mirror experiments and the report. Return the number of runs created or completed.

    `with_models=False` logs no missing models, which would import torch and custom code.
    """
    close_abandoned_runs(store)
    count, answers = 0, documents.answers_of(report)
    for name in names:
        for device in DEVICE_LABELS:
            try:
                document = documents.script_document(name, device, results, answers)
                document = document or documents.training_document(name, device, results, answers)
            except UserError as error:  # a record of an older photofinish
                problem = first_line(error)
                print(f"MLflow: {name}/{device} is not logged: {problem}", file=sys.stderr)
                continue
            if document:
                document = document if with_models else replace(document, model=None)
                count += _sync(store, document)
    if not is_copy():  # its runs and its report stand beside those of the project
        _mark_as_past(store, names)
        if (report / documents.REPORT_TEXT).is_file():
            count += _sync(store, documents.report_document(report))
    return count


def _sync(store: Store, document: documents.RunDocument) -> bool:
    """Return True if a run had to be created or completed for the document."""
    writer = process_tag()
    with store.lock:
        tags = {documents.TAG_RESULT: document.result, documents.TAG_PROCESS: writer}
        runs = store.find_runs(f"tags.`{documents.TAG_RESULT}` = '{document.result}'")
        run = next(iter(runs), None)
        key = document.tags.get(documents.TAG_TRAINING_KEY)
        if run is None and key:  # the training may have opened a run and then lost its server
            run = unfinished_run(store, key, document.tags[documents.TAG_HOST])
        if run is None:
            tags |= document.tags
            run_id = create_run(store, document.name, tags, document.started_ms)
        elif is_live(store, run) and run.data.tags[documents.TAG_PROCESS] != writer:
            return False  # another process is writing this run
        elif _is_whole(store, run, document):
            return False
        else:
            run_id = str(run.info.run_id)
            store.client.log_batch(run_id, tags=[RunTag(*tag) for tag in tags.items()])
        mirror_run(store, run_id, document)
    return True


def unfinished_run(store: Store, training_key: str, host: str) -> Run | None:
    """Return the newest run of this training on this machine that has no result yet.

    All runs in the project's own store are of this machine, though a container has random names.
    """
    wanted = f"tags.`{documents.TAG_TRAINING_KEY}` = '{training_key}'"
    if store.local_artifacts is None:
        wanted += f" and tags.`{documents.TAG_HOST}` = '{host}'"
    runs = store.find_runs(f"attributes.status != 'FINISHED' and {wanted}")
    return next(iter(runs), None)


def create_run(store: Store, name: str, tags: dict[str, str], started_ms: int | None) -> str:
    """Create a run with all tags in one call, so that it is found even if this process dies."""
    host = tags.get(documents.TAG_HOST)
    if host and store.local_artifacts is None:
        name = f"{name}@{host}"
    if host in (None, platform.node()):
        tags = tags | {"mlflow.user": psutil.Process().username()}
    run = store.client.create_run(store.experiment_id, started_ms, tags, name)
    return str(run.info.run_id)


def set_note(client: MlflowClient, run: Run, text: str) -> None:
    """Set the run's description, unless a user wrote one."""
    before = run.data.tags.get(documents.TAG_NOTE, "")
    if text != before and (not before or before.startswith(documents.OURS)):
        client.set_tag(run.info.run_id, documents.TAG_NOTE, text)


def mirror_run(store: Store, run_id: str, document: documents.RunDocument) -> None:
    """Update a run from a document. The tag that marks the run as complete is set last."""
    client = store.client
    _mark_as_current(store, run_id, document.tags)
    run = client.get_run(run_id)
    tags = dict(document.tags)
    set_note(client, run, tags.pop(documents.TAG_NOTE, ""))
    new_params = document.params.keys() - run.data.params.keys()
    client.log_batch(
        run_id,
        tags=[RunTag(*tag) for tag in tags.items()],
        params=[Param(key, document.params[key]) for key in new_params],
    )
    if document.dataset and not run.inputs.dataset_inputs:
        client.log_inputs(run_id, [document.dataset])
    has_files = documents.TAG_MIRRORED in run.data.tags and _has_artifacts(store, run)
    if document.model and not (has_files and _has_model(store, run)):
        from photofinish.tracking.model import log_model  # imports torch, which takes seconds

        try:
            log_model(store, run, document)
        except UserError as error:  # custom code has changed or fails
            print(f"MLflow: {document.name} is logged without its model: {error}", file=sys.stderr)
    _log_missing_metrics(client, run, document.metrics)
    for path, folder in document.files:
        # A training's identity determines its files. Those of other stages may change.
        if not has_files or folder in (EVALUATED, MEASURED_FOLDER, documents.REPORT):
            client.log_artifact(run_id, str(path), folder)
    client.set_tag(run_id, documents.TAG_RESULT, document.result)
    # The end of the job, not of the measurements after it, nor the time when MLflow was back.
    client.set_terminated(run_id, "FINISHED", run.info.start_time + document.duration_ms)
    client.set_tag(run_id, documents.TAG_MIRRORED, document.mirrored)


def _mark_as_current(store: Store, run_id: str, tags: dict[str, str]) -> None:
    """Mark the run as current for its experiment and device, and earlier runs as not current.

    In a shared store, this changes only runs on equal hardware, since host names may be random.
    """
    if is_copy():
        return
    same = (documents.TAG_DEVICE, *(_HARDWARE if store.local_artifacts is None else ()))
    same_name = f"tags.`{documents.TAG_EXPERIMENT}` = '{tags.get(documents.TAG_EXPERIMENT)}'"
    for run in store.find_runs(f"tags.`{documents.TAG_CURRENT}` = 'true' and {same_name}"):
        if all(run.data.tags.get(tag) == tags.get(tag) for tag in same):
            store.client.set_tag(run.info.run_id, documents.TAG_CURRENT, "false")
    store.client.set_tag(run_id, documents.TAG_CURRENT, "true")


def _mark_as_past(store: Store, names: list[str]) -> None:
    """Mark the runs of experiments that params.yaml has no more as not current."""
    if store.local_artifacts is None:
        return
    for run in store.find_runs(f"tags.`{documents.TAG_CURRENT}` = 'true'"):
        if run.data.tags.get(documents.TAG_EXPERIMENT) not in (*names, None):
            store.client.set_tag(run.info.run_id, documents.TAG_CURRENT, "false")


def _log_missing_metrics(client: MlflowClient, run: Run, metrics: list[Metric]) -> None:
    """Log only the metrics that the run lacks, because MLflow would keep repeated values twice.

    MLflow shows the latest value of a step, so a changed value gets a later time.
    """
    latest: dict[tuple[str, int], Metric] = {}
    for key in {metric.key for metric in metrics} & run.data.metrics.keys():
        history = client.get_metric_history(run.info.run_id, key)
        for logged in sorted(history, key=lambda metric: metric.timestamp):
            latest[key, logged.step] = logged
    missing = []
    for metric in metrics:
        before, time_ms = latest.get((metric.key, metric.step)), metric.timestamp
        if before and (before.value == metric.value or math.isnan(metric.value)):
            continue
        if before:
            time_ms = max(time_ms, before.timestamp + 1)
        missing.append(Metric(metric.key, metric.value, time_ms, metric.step))
    client.log_batch(run.info.run_id, missing)


def _is_whole(store: Store, run: Run, document: documents.RunDocument) -> bool:
    """Return True if MLflow has the complete document."""
    return (
        run.info.status == "FINISHED"
        and run.data.tags.get(documents.TAG_MIRRORED) == document.mirrored
        and (run.data.tags.get(documents.TAG_CURRENT) == "true" or is_copy())
        and _has_artifacts(store, run)
        and (document.model is None or _has_model(store, run))
    )


def _has_artifacts(store: Store, run: Run) -> bool:
    """Return False if `mlruns/` was deleted. Other stores are assumed to keep their artifacts."""
    return store.local_artifacts is None or (store.local_artifacts / run.info.run_id).is_dir()


def _has_model(store: Store, run: Run) -> bool:
    model = store.logged_model(run)
    return model is not None and model.status == LoggedModelStatus.READY


def bring_up_to_date(port: int) -> None:
    """Sync, and print the address at which MLflow's server will show the runs."""
    server = os.environ.get("MLFLOW_TRACKING_URI", "")
    plan = Path("data/plan")
    paths = [*plan.glob("experiments/*.json"), *plan.glob("scripts/*.json")]
    names = sorted(path.stem for path in paths)
    store = open_store(project_root(), state_folder())
    count = sync_all(store, names, Path("results"), Path("report"))
    # Only a shared view sets the columns of MLflow's page of runs, and always has a banner.
    shown = {"selectedColumns": _COLUMNS, "columnOrder": _COLUMNS, "columnWidths": {_VERDICT: 260}}
    tag = f"mlflow.sharedViewState.{_VIEW}"
    store.client.set_experiment_tag(store.experiment_id, tag, json.dumps(shown))
    print(f"MLflow is up to date{f'; runs added or completed: {count}' if count else ''}")
    own = f"http://127.0.0.1:{port}"
    ui = server.rstrip("/") if server.startswith("http") else own
    # Without the workflow, MLflow shows its pages for language models.
    view = f"workflowType=machine_learning&viewStateShareKey={_VIEW}"
    print(f"The runs: {ui}/#/experiments/{store.experiment_id}/runs?{view}")


@cache
def open_project() -> Store:
    return open_store(project_root(), state_folder())


def start(
    name: str,
    device: str,
    experiment: Experiment,
    training_key: str,
    data_sha256: str,
    samples: dict[PartName, int],
    started_ms: int,
) -> None:
    store = open_project()
    close_abandoned_runs(store)
    host = platform.node()
    run = unfinished_run(store, training_key, host)
    if run and not is_live(store, run):
        run_id = str(run.info.run_id)
        store.client.set_tag(run_id, documents.TAG_PROCESS, process_tag())
        store.client.update_run(run_id, status="RUNNING")
        set_note(store.client, run, "")  # clears the reason for the stop
    else:
        tags = documents.run_tags(name, device, host, training_key)
        tags[documents.TAG_PROCESS] = process_tag()
        run_id = create_run(store, f"{name}/{device}", tags, started_ms)
        params = documents.run_params(experiment, device)
        store.client.log_batch(run_id, params=[Param(*param) for param in params.items()])
        dataset = documents.dataset_input(experiment.dataset, data_sha256, samples)
        store.client.log_inputs(run_id, [dataset])
    history = store.client.get_metric_history(run_id, "training_loss")
    _live.clear()
    _live[run_id] = max((metric.step for metric in history), default=0)
    if store.local_artifacts:
        # Logging the model needs torch, which takes seconds to import: now, as the stage does.
        importlib.import_module("photofinish.tracking.model")


def epochs(epochs: list[tuple[EpochMetrics, EpochTiming]], training_images: int) -> None:
    """Log the epochs that MLflow lacks. A resumed training repeats epochs after its checkpoint."""
    ((run_id, last_epoch),), metrics = _live.items(), []
    for epoch, timing in epochs:
        if epoch.epoch > last_epoch:
            metrics += epoch_metrics(epoch, timing, training_images)
            _live[run_id] = epoch.epoch
    open_project().client.log_batch(run_id, metrics)


def training_ended(
    name: str,
    device: DeviceLabel,
    results: Path,
    checkpoints: list[Path],
) -> None:
    store, (run_id, _) = open_project(), _live.popitem()
    for path in checkpoints:
        store.client.log_artifact(run_id, str(path), "checkpoints")
    document = documents.training_document(name, device, results)
    assert document
    with store.lock:
        mirror_run(store, run_id, document)


def stopped(status: str, reason: str) -> None:
    while _live:
        client = open_project().client
        run = client.get_run(_live.popitem()[0])
        set_note(client, run, f"{documents.OURS} stopped: {reason}")
        client.set_terminated(run.info.run_id, status)


def sync(names: list[str], results: Path, report: Path) -> None:
    sync_all(open_project(), names, results, report, with_models=False)
