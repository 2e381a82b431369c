"""The MLflow store and the runs in it: made once however many processes start at once, and found after a move.

MLflow makes the address of artifacts absolute when it is given it, and has no public call to change it later
(mlflow/mlflow#3144), so a project that moved has its addresses changed through MLflow's own table classes.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

import psutil
from filelock import FileLock

# Read by MLflow when it is imported: no telemetry, and a server that is gone is noticed in seconds, not in the
# four minutes of MLflow's own defaults.
for _name, _value in {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "GIT_PYTHON_REFRESH": "quiet",
}.items():
    os.environ.setdefault(_name, _value)

import mlflow  # noqa: E402
from alembic.util.exc import CommandError  # noqa: E402
from mlflow import MlflowClient  # noqa: E402
from mlflow.entities import Run  # noqa: E402
from mlflow.exceptions import MlflowException  # noqa: E402
from mlflow.store.tracking.dbmodels.models import SqlExperiment, SqlLoggedModel, SqlRun  # noqa: E402
from requests import RequestException  # noqa: E402
from sqlalchemy import NullPool, create_engine, func, update  # noqa: E402
from sqlalchemy.exc import SQLAlchemyError  # noqa: E402

from photofinish.tracking.documents import TAG_PROCESS  # noqa: E402

_OWN_EXPERIMENT = "photofinish"
"""in the project's own store; in one that several projects may share, each is named after its folder"""
MLFLOW_ERRORS = (
    MlflowException, RequestException, SQLAlchemyError, CommandError, sqlite3.Error, OSError, ModuleNotFoundError
)  # fmt: skip
"""What MLflow raises when its store or server fails, or needs a package that isn't there."""

_DAMAGED = "the database is damaged: move its file away (mlflow.db, unless MLFLOW_TRACKING_URI names another)"
_REMEDIES = {
    "file is not a database": _DAMAGED,
    "disk image is malformed": _DAMAGED,
    "No module named": "MLFLOW_TRACKING_URI names a database that needs this module: install it, or change that",
    "unsupported URI": "change MLFLOW_TRACKING_URI",
    "Could not parse": "change MLFLOW_TRACKING_URI",
    "No Experiment with id": "change MLFLOW_EXPERIMENT_ID",
    "Can't load plugin": "change MLFLOW_TRACKING_URI",
    "Invalid Host header": "start the server with --allowed-hosts and its name and port as in MLFLOW_TRACKING_URI",
}

_MOST_SILENT_SECONDS = 7 * 24 * 3600
"""without an epoch: then a process of another machine, which can't be looked for, is taken for gone"""


@dataclass(frozen=True)
class Store:
    """An open tracking store and the MLflow experiment that holds this project's runs."""

    client: MlflowClient
    experiment_id: str
    local_artifacts: Path | None
    """where the project's own store keeps its artifacts"""
    mirroring: FileLock
    """held while a result is looked up and mirrored, so that two processes don't both find it missing"""

    def find_runs(self, filter_string: str = "") -> list[Run]:
        """Every run of this project that matches, the newest first."""
        found: list[Run] = []
        token = None
        while token != "":
            page = self.client.search_runs([self.experiment_id], filter_string, max_results=500, page_token=token)
            found += page
            token = page.token or ""
        return found

    def close_abandoned_runs(self) -> None:
        """A run whose process is gone will never end by itself: SIGKILL and power cuts leave it RUNNING for ever."""
        for run in self.find_runs("attributes.status = 'RUNNING'"):
            process = Process.of(run)
            if process and (process.is_gone() or self._is_long_silent(run, process)):
                self.client.set_terminated(run.info.run_id, "KILLED")

    def _is_long_silent(self, run: Run, process: Process) -> bool:
        """On another machine, perhaps one that is no more; if it lives after all, its end still completes the run."""
        silent_since_seconds = time.time() - _MOST_SILENT_SECONDS
        if process.host == platform.node() or process.began_at_unix_seconds > silent_since_seconds:
            return False
        epochs = self.client.get_metric_history(run.info.run_id, "training_loss")
        return all(metric.timestamp <= silent_since_seconds * 1000 for metric in epochs)


class Process(NamedTuple):
    """The process that writes a run, named in a tag of it so that another can tell whether it still lives."""

    host: str
    id: int
    began_at_unix_seconds: float

    @classmethod
    def own(cls) -> Self:
        """This one."""
        return cls(platform.node(), os.getpid(), psutil.Process().create_time())

    @classmethod
    def of(cls, run: Run) -> Self | None:
        """The one that the run's tag names, if it has that tag."""
        tag = run.data.tags.get(TAG_PROCESS)
        return cls(*json.loads(tag)) if tag else None

    def as_tag(self) -> str:
        """What `of` reads."""
        return json.dumps(self)

    def is_gone(self) -> bool:
        """Of a process on another machine, that can't be told."""
        if self.host != platform.node():
            return False
        try:
            return abs(psutil.Process(self.id).create_time() - self.began_at_unix_seconds) > 1
        except psutil.NoSuchProcess:
            return True


def is_live(run: Run) -> bool:
    """Whether a process is still writing it."""
    process = Process.of(run)
    return run.info.status == "RUNNING" and process is not None and not process.is_gone()


def open_store(root: Path, state: Path, sweep: str | None = None) -> Store:
    """The project's own store, or the one that `MLFLOW_TRACKING_URI` names; in it, a sweep has its own experiment."""
    for library in ("mlflow", "alembic"):
        logging.getLogger(library).setLevel(logging.ERROR)
    locks = state / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    given_uri = os.environ.get("MLFLOW_TRACKING_URI", "")
    uri = _in_project(given_uri, root) if given_uri else f"sqlite:///{root / 'mlflow.db'}"
    artifacts = None if given_uri else root / "mlruns" / _OWN_EXPERIMENT
    given_id, given_name = (os.environ.get(f"MLFLOW_EXPERIMENT_{part}") for part in ("ID", "NAME"))
    name = given_name or (_OWN_EXPERIMENT if artifacts else root.name)
    name = f"{name}-{sweep}" if sweep else name
    # MLflow creates its tables at first use, and breaks the database if several processes do so at once.
    with FileLock(locks / "mlflow.lock"):
        mlflow.set_tracking_uri(uri)
        os.environ["MLFLOW_TRACKING_URI"] = given_uri  # MLflow sets it: the next store would be taken for the user's
        client = MlflowClient(uri)
        experiment = client.get_experiment(given_id) if given_id else client.get_experiment_by_name(name)
        if given_id and given_name and experiment.name != given_name:
            raise MlflowException(f"MLFLOW_EXPERIMENT_ID is {given_id}, and MLFLOW_EXPERIMENT_NAME names another")
        if experiment is None:
            experiment_id = client.create_experiment(name, artifacts.as_uri() if artifacts else None)
        else:
            experiment_id = experiment.experiment_id
            if experiment.lifecycle_stage == "deleted":
                client.restore_experiment(experiment_id)
            if artifacts and not experiment.artifact_location.endswith(f"/mlruns/{_OWN_EXPERIMENT}"):
                artifacts = None  # it is the user's, made by other means
            elif artifacts and experiment.artifact_location != artifacts.as_uri():
                _follow_move(uri, experiment.artifact_location, artifacts.as_uri())
    return Store(client, experiment_id, artifacts, FileLock(locks / "mirroring.lock"))


def first_line(error: Exception) -> str:
    """What it says, without the page of SQL or HTML that may follow, and what to do where that is known."""
    line = next(iter(str(error).strip().splitlines()), repr(error))
    return "; ".join([line, *(remedy for sign, remedy in _REMEDIES.items() if sign in line)])


def _in_project(uri: str, root: Path) -> str:
    """A relative path starts at the project: an experiment that DVC runs in a copy tells the project's store."""
    path = uri.removeprefix("sqlite:///")
    if ":" in path or Path(path).is_absolute() or uri.startswith("databricks"):
        return uri
    return f"sqlite:///{root / path}" if uri.startswith("sqlite:") else str(root / path)


def _follow_move(uri: str, old: str, new: str) -> None:
    with create_engine(uri, poolclass=NullPool).begin() as connection:
        for address in (SqlExperiment.artifact_location, SqlRun.artifact_uri, SqlLoggedModel.artifact_location):
            moved = update(address.class_).where(address.startswith(old, autoescape=True))
            connection.execute(moved.values({address: func.replace(address, old, new)}))
