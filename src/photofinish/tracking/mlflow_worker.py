"""The process that talks to MLflow while a stage works: messages come in on stdin, an answer to each goes out.

A process of its own, so that importing MLflow (seconds) overlaps with the stage's own start-up, a server that
hangs can't hang training, and a trainer that is killed outright still has its run closed: its pipe then ends.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

from photofinish.errors import UserError
from photofinish.files import own_sweep, project_root, state_folder
from photofinish.results import EpochMetrics, EpochTiming
from photofinish.tracking import documents
from photofinish.tracking.client import READY_BUT_SLOW
from photofinish.tracking.documents import RunFacts
from photofinish.tracking.mirror import create_run, mirror_run, write_facts, write_points
from photofinish.tracking.store import MLFLOW_ERRORS, Process, first_line, is_live, open_store
from photofinish.tracking.sync import sync_all, sync_experiments

_SAMPLE_SECONDS = 5.0
"""least time between two samples of the system's metrics, which are taken between epochs, never within a timed pass"""
_SLOW_SECONDS = 0.5
"""for the shortest of answers: a server takes milliseconds, one on the other side of the world a quarter of a second"""


class Worker:
    """What a stage may ask for, a method each; `start` comes before what is told of a run."""

    def __init__(self) -> None:
        self._store = open_store(project_root(), state_folder(), own_sweep())
        self._run_id = ""
        self._last_epoch = 0
        self._system: SystemMetricsMonitor | None = None
        """MLflow's own, without the thread of its own"""
        self._sampled_seconds = time.monotonic()

    def server_is_slow(self) -> bool:
        """Whether the shortest of its answers takes long, so that all of a stage's would hold up the next ones too."""
        asked_seconds = time.monotonic()
        self._store.client.get_experiment(self._store.experiment_id)
        return time.monotonic() - asked_seconds > _SLOW_SECONDS

    def start(self, facts: dict[str, Any], training_key: str, started_ms: int) -> None:
        """Open the run of a training that begins, or go on with the one of a training that was killed."""
        store, client, own = self._store, self._store.client, Process.own()
        store.close_abandoned_runs()
        run_facts = RunFacts(**facts)
        tags = {documents.TAG_TRAINING_KEY: training_key, documents.TAG_PROCESS: own.as_tag()}
        for run in store.find_runs(f"tags.`{documents.TAG_TRAINING_KEY}` = '{training_key}'"):
            before = Process.of(run)
            if run.info.status != "FINISHED" and before and before.host == own.host and not is_live(run):
                self._run_id = str(run.info.run_id)
                client.set_tag(self._run_id, documents.TAG_PROCESS, own.as_tag())  # first: it is the dead one's no more
                client.update_run(self._run_id, status="RUNNING")
                if documents.TAG_NOTE in run.data.tags:
                    client.delete_tag(self._run_id, documents.TAG_NOTE)  # it tells how the run had ended
                write_facts(client, self._run_id, run_facts)
                break
        else:
            self._run_id = create_run(store, run_facts, tags, started_ms)
        told = client.get_metric_history(self._run_id, "training_loss")
        self._last_epoch = max((metric.step for metric in told), default=0)
        self._system = SystemMetricsMonitor(self._run_id, resume_logging=True)
        # What logging the model takes, torch above all (seconds): now, while the stage imports it too, on another core.
        # Not with a server, for which a stage waits no longer than it must.
        if store.local_artifacts:
            importlib.import_module("photofinish.results.learned")

    def epochs(self, epochs: list[tuple[dict[str, Any], dict[str, Any]]], training_images: int) -> None:
        """A resumed training repeats the epochs after its checkpoint: MLflow has those already."""
        new = [pair for pair in epochs if pair[0]["epoch"] > self._last_epoch]
        points = [
            point
            for metrics, timing in new
            for point in documents.epoch_points(EpochMetrics(**metrics), EpochTiming(**timing), training_images)
        ]
        write_points(self._store.client, self._run_id, points)
        self._last_epoch += len(new)
        if time.monotonic() - self._sampled_seconds > _SAMPLE_SECONDS:
            self._sample_system()

    def training_ended(self, name: str, device: Any, results: str, checkpoints: list[str]) -> None:
        """Complete the run from what the training left on disk."""
        self._sample_system()  # also of a training of a second
        for path in checkpoints:
            self._store.client.log_artifact(self._run_id, path, "checkpoints")
        document = documents.training_document(name, device, Path(results))
        assert document  # it was trained
        with self._store.mirroring:
            mirror_run(self._store, self._run_id, document)
        self._run_id = ""

    def _sample_system(self) -> None:
        if self._system:
            self._system.collect_metrics()
            self._system.publish_metrics(self._system.aggregate_metrics())
            self._system.mlflow_logger.flush()
            self._sampled_seconds = time.monotonic()

    def stopped(self, status: str, reason: str) -> None:
        """Close the run of a training that won't end, if there is one."""
        if self._run_id:
            self._store.client.set_tag(self._run_id, documents.TAG_NOTE, reason)
            self._store.client.set_terminated(self._run_id, status)
            self._run_id = ""

    def sync(self, names: list[str], results: str, report: str | None) -> None:
        """Mirror what these experiments left on disk, and their comparison where there is a report."""
        if report:
            sync_all(self._store, names, Path(results), Path(report), in_compare=True)
        else:
            sync_experiments(self._store, names, Path(results))


def main() -> None:
    """Answer the messages of a stage until its pipe ends."""
    # Ctrl-C reaches the whole terminal; this process ends when the stage that feeds it does.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdout = sys.stderr  # what a library prints must not be taken for an answer
    try:
        worker = Worker()
        _answer(READY_BUT_SLOW if worker.server_is_slow() else "ready")
        for line in sys.stdin:
            message = json.loads(line)
            getattr(worker, message.pop("do"))(**message)
            _answer("done")
        worker.stopped("KILLED", "the training process ended without a word")
        # All is written. Python would spend another second on taking MLflow down, with the stage waiting for it.
        os._exit(0)
    except (*MLFLOW_ERRORS, UserError) as error:
        _answer(first_line(error))
        sys.exit(1)


def _answer(text: str) -> None:
    with suppress(BrokenPipeError):  # a stage that was ended while it waited: what it asked for is still done
        print(json.dumps(text), file=sys.__stdout__, flush=True)


if __name__ == "__main__":
    main()
