"""The process that talks to MLflow while a stage works: messages come in on stdin, an answer to each goes out.

A process of its own, so that importing MLflow (seconds) overlaps with the stage's own start-up, a server that
hangs can't hang training, and a trainer that is killed outright still has its run closed: its pipe then ends.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

# Read by MLflow when it is imported. A stage waits for this process: a server that is gone must show in seconds.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "4")
os.environ.setdefault("MLFLOW_ARTIFACT_UPLOAD_DOWNLOAD_TIMEOUT", "4")

from photofinish.errors import UserError
from photofinish.files import project_root, state_folder
from photofinish.processes import quick_imports
from photofinish.results.epochs import EpochMetrics, EpochTiming
from photofinish.tracking import documents
from photofinish.tracking.documents import DatasetFacts, RunFacts
from photofinish.tracking.mirror import (
    close_abandoned_runs,
    create_run,
    find_runs,
    is_live,
    is_of_this_host,
    last_step,
    mirror_run,
    process_tag,
    write_facts,
    write_points,
)
from photofinish.tracking.store import MLFLOW_ERRORS, first_line, open_store
from photofinish.tracking.sync import sync_all, sync_experiments
from photofinish.tracking.system_metrics import SystemSampler


class Worker:
    def __init__(self) -> None:
        self._store = open_store(project_root(), state_folder())
        self._run_id = ""
        self._last_epoch = 0
        self._sampler: SystemSampler | None = None

    def start(self, facts: dict[str, Any], training_key: str) -> None:
        """Open the run of a training that begins, or go on with the one of a training that was killed."""
        close_abandoned_runs(self._store)
        dataset = facts.pop("dataset")
        run_facts = RunFacts(**facts, dataset=DatasetFacts(**dataset) if dataset else None)
        client = self._store.client
        same = find_runs(self._store, f"tags.`{documents.TAG_TRAINING_KEY}` = '{training_key}'")
        killed = [run for run in same if run.info.status != "FINISHED" and is_of_this_host(run) and not is_live(run)]
        if killed:
            self._run_id = str(killed[0].info.run_id)
            client.set_tag(self._run_id, documents.TAG_PROCESS, process_tag())  # first: it no longer is the dead one's
            client.update_run(self._run_id, status="RUNNING")
            if documents.TAG_NOTE in killed[0].data.tags:
                client.delete_tag(self._run_id, documents.TAG_NOTE)  # it tells how the run had ended
            write_facts(client, self._run_id, run_facts)
        else:
            tags = {documents.TAG_TRAINING_KEY: training_key, documents.TAG_PROCESS: process_tag()}
            self._run_id = create_run(self._store, run_facts, tags)
        self._last_epoch = last_step(client, self._run_id, "training_loss", default=0)
        self._sampler = SystemSampler(
            first_step=last_step(client, self._run_id, "system/cpu_utilization_percentage", default=-1) + 1
        )

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
        self._write_system_metrics()

    def training_ended(self, name: str, device: Any, results: str, checkpoints: list[str], pickled: str | None) -> None:
        self._write_system_metrics()
        for path in checkpoints:
            self._store.client.log_artifact(self._run_id, path, "checkpoints")
        document = documents.training_document(name, device, Path(results))
        with self._store.mirroring:
            mirror_run(self._store, self._run_id, document, Path(pickled) if pickled else None)
        self._run_id = ""

    def stopped(self, status: str, reason: str) -> None:
        if self._run_id:
            self._store.client.set_tag(self._run_id, documents.TAG_NOTE, reason)
            self._store.client.set_terminated(self._run_id, status)
            self._run_id = ""

    def sync(self, names: list[str], results: str, report: str | None) -> None:
        if report:
            sync_all(self._store, names, Path(results), Path(report), restored=False)
        else:
            sync_experiments(self._store, names, Path(results))

    def _write_system_metrics(self) -> None:
        if self._sampler:
            write_points(self._store.client, self._run_id, self._sampler.take())


def main() -> None:
    # Ctrl-C reaches the whole terminal; this process ends when the stage that feeds it does.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdout = sys.stderr  # what a library prints must not be taken for an answer
    logging.getLogger("mlflow").setLevel(logging.ERROR)
    logging.getLogger("alembic").setLevel(logging.ERROR)
    try:
        with quick_imports():  # MLflow imports half of itself when it opens a store
            worker = Worker()
        _answer("ready")
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
