"""Functions that `client.Tracker` calls in the stage's MLflow process."""

from __future__ import annotations

import importlib
import platform
from functools import cache
from pathlib import Path

from mlflow.entities import Param

from photofinish.config.experiment import Experiment
from photofinish.data import PartName
from photofinish.files import project_root, state_folder
from photofinish.results import EpochMetrics, EpochTiming
from photofinish.results.trained import DeviceLabel
from photofinish.tracking import documents
from photofinish.tracking.run_metrics import epoch_metrics
from photofinish.tracking.store import Store, close_abandoned_runs, is_live, open_store, process_tag
from photofinish.tracking.sync import create_run, mirror_run, set_note, sync_all, unfinished_run

_live: dict[str, int] = {}
"""Run of the current training, by its id, with the last epoch that MLflow has of it."""


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
