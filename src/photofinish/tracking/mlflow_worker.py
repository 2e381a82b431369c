"""Functions that a stage calls in its MLflow process; `open_project` comes first."""

from __future__ import annotations

import importlib
import time
from pathlib import Path
from typing import Any

from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

from photofinish.files import own_sweep, project_root, state_folder
from photofinish.results import EpochMetrics, EpochTiming
from photofinish.results.records import DeviceLabel
from photofinish.tracking import documents
from photofinish.tracking.documents import RunFacts
from photofinish.tracking.mirror import create_run, mirror_run, set_note, write_facts, write_points
from photofinish.tracking.store import Process, Store, is_live, open_store
from photofinish.tracking.sync import sync_all, sync_experiments

_SAMPLE_SECONDS = 5.0
"""least time between two samples of the system's metrics, which are taken between epochs"""


class LiveRun:
    """A run whose training goes on."""

    def __init__(self, store: Store, run_id: str) -> None:
        self._store = store
        self.id = run_id
        history = store.client.get_metric_history(run_id, "training_loss")
        self._last_epoch = max((metric.step for metric in history), default=0)
        self._system = SystemMetricsMonitor(run_id, resume_logging=True)
        self._sampled_seconds = time.monotonic()

    def log_epochs(self, epochs: list[tuple[dict[str, Any], dict[str, Any]]], training_images: int) -> None:
        """Log the epochs that MLflow does not have: a resumed training repeats those after its checkpoint."""
        points = []
        for metrics, timing in epochs:
            if metrics["epoch"] > self._last_epoch:
                points += documents.epoch_points(EpochMetrics(**metrics), EpochTiming(**timing), training_images)
                self._last_epoch = metrics["epoch"]
        write_points(self._store.client, self.id, points)
        if time.monotonic() - self._sampled_seconds > _SAMPLE_SECONDS:
            self.sample_system()

    def sample_system(self) -> None:
        """Log MLflow's system metrics, without the thread that MLflow runs for them."""
        self._system.collect_metrics()
        self._system.publish_metrics(self._system.aggregate_metrics())
        self._system.mlflow_logger.flush()
        self._sampled_seconds = time.monotonic()


_stores: list[Store] = []
_runs: list[LiveRun] = []


def open_project() -> None:
    """Open the project's store."""
    _stores[:] = [open_store(project_root(), state_folder(), own_sweep())]
    _runs.clear()


def start(facts: RunFacts, training_key: str, started_ms: int) -> None:
    """Open the run of a training that begins, or resume the run of the same training if that was killed."""
    (store,), own = _stores, Process.own()
    store.close_abandoned_runs()
    tags = {documents.TAG_TRAINING_KEY: training_key, documents.TAG_PROCESS: own.as_tag()}
    for run in store.find_runs(f"tags.`{documents.TAG_TRAINING_KEY}` = '{training_key}'"):
        before = Process.of(run)
        if run.info.status != "FINISHED" and before and before.host == own.host and not is_live(run):
            run_id = str(run.info.run_id)
            store.client.set_tag(run_id, documents.TAG_PROCESS, own.as_tag())
            store.client.update_run(run_id, status="RUNNING")
            set_note(store.client, run, "")  # how it had ended
            write_facts(store.client, run_id, facts)
            break
    else:
        run_id = create_run(store, facts, tags, started_ms)
    _runs[:] = [LiveRun(store, run_id)]
    if store.local_artifacts:
        # Import torch now, which takes seconds and is needed to log the model, while the stage imports it too.
        importlib.import_module("photofinish.results.learned")


def epochs(epochs: list[tuple[dict[str, Any], dict[str, Any]]], training_images: int) -> None:
    """Log epochs of the run that goes on."""
    _runs[0].log_epochs(epochs, training_images)


def training_ended(name: str, device: DeviceLabel, results: Path, checkpoints: list[Path]) -> None:
    """Complete the run from the files of the training."""
    (store,), run = _stores, _runs.pop()
    run.sample_system()  # a training of a second has no sample yet
    for path in checkpoints:
        store.client.log_artifact(run.id, str(path), "checkpoints")
    document = documents.training_document(name, device, results)
    assert document
    with store.mirroring:
        mirror_run(store, run.id, document)


def stopped(status: str, reason: str) -> None:
    """Close the run, if there is one, of a training that failed or was stopped."""
    (store,) = _stores
    while _runs:
        run = store.client.get_run(_runs.pop().id)
        set_note(store.client, run, f"{documents.OURS} stopped: {reason}")
        store.client.set_terminated(run.info.run_id, status)


def sync(names: list[str], results: Path, report: Path | None) -> None:
    """Mirror the results of these experiments, and their comparison if there is a report."""
    (store,) = _stores
    if report:
        sync_all(store, names, results, report, with_models=False)
    else:
        sync_experiments(store, names, results)
