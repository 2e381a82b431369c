"""MLflow's store, the experiment in it that holds this project's runs, and the processes that write them."""

from __future__ import annotations

import json
import logging
import os
import platform
import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

import psutil
from filelock import FileLock

# MLflow reads these when it is imported: no telemetry, and a server that is gone fails in seconds, not in four minutes.
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
from mlflow import MlflowClient  # noqa: E402
from mlflow.entities import Run  # noqa: E402
from mlflow.exceptions import MlflowException  # noqa: E402

from photofinish.tracking.documents import TAG_PROCESS  # noqa: E402

_OWN_EXPERIMENT = "photofinish"
"""name in the project's own store; in another, which projects may share, it is that of the project's folder"""
MLFLOW_ERRORS = (MlflowException, OSError)
"""errors of a store or server; those of `requests` are OSErrors"""
_SQLITE = "sqlite:///"
_RACE_SIGNS = ("UniqueViolation", "already exists")
_RACE_SECONDS = 2.0


@dataclass(frozen=True)
class Store:
    """An open tracking store and the MLflow experiment that holds this project's runs."""

    client: MlflowClient
    experiment_id: str
    local_artifacts: Path | None
    """folder of the artifacts, if the store is the project's own"""
    mirroring: FileLock
    """held while a result is looked up and mirrored, so that two processes do not both create its run"""

    def find_runs(self, filter_string: str = "") -> list[Run]:
        """Return every run of this project that matches, the newest first."""
        found: list[Run] = []
        token = None
        while token != "":
            page = self.client.search_runs([self.experiment_id], filter_string, max_results=500, page_token=token)
            found += page
            token = page.token or ""
        return found

    def close_abandoned_runs(self) -> None:
        """End each run whose process is gone: after SIGKILL or a power cut, MLflow shows it as running for ever."""
        for run in self.find_runs("attributes.status = 'RUNNING'"):
            process = Process.of(run)
            if process and process.is_gone():
                self.client.set_terminated(run.info.run_id, "KILLED")


class Process(NamedTuple):
    """The process that writes a run, as a tag of the run names it."""

    host: str
    id: int
    began_at_unix_seconds: float

    @classmethod
    def own(cls) -> Self:
        """Return this process."""
        return cls(platform.node(), os.getpid(), psutil.Process().create_time())

    @classmethod
    def of(cls, run: Run) -> Self | None:
        """Return the process that the run's tag names, or None if it has no such tag."""
        tag = run.data.tags.get(TAG_PROCESS)
        return cls(*json.loads(tag)) if tag else None

    def as_tag(self) -> str:
        """Return the tag's value."""
        return json.dumps(self)

    def is_gone(self) -> bool:
        """Return True if it has ended; False if it has not, or runs on another machine."""
        if self.host != platform.node():
            return False
        try:
            return abs(psutil.Process(self.id).create_time() - self.began_at_unix_seconds) > 1
        except psutil.NoSuchProcess:
            return True


def is_live(run: Run) -> bool:
    """Return True if a process still writes the run."""
    process = Process.of(run)
    return run.info.status == "RUNNING" and process is not None and not process.is_gone()


def open_store(root: Path, state: Path, sweep: str | None = None) -> Store:
    """Open the project's own store, or the one that MLFLOW_TRACKING_URI names; a sweep has its own experiment in it."""
    for library in ("mlflow", "alembic"):
        logging.getLogger(library).setLevel(logging.ERROR)
    locks = state / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    given_uri = os.environ.get("MLFLOW_TRACKING_URI", "")
    uri = _in_project(given_uri, root) if given_uri else f"{_SQLITE}{root / 'mlflow.db'}"
    artifacts = None if given_uri else root / "mlruns" / _OWN_EXPERIMENT
    with FileLock(locks / "mlflow.lock"):
        try:
            store = _open(uri, artifacts, root, sweep, FileLock(locks / "mirroring.lock"))
        except Exception as error:
            # Another machine that opens a new PostgreSQL store at the same time makes the same tables.
            if not any(sign in str(error) for sign in _RACE_SIGNS):
                remedy = "change MLFLOW_TRACKING_URI" if given_uri else "move the file away, and `make ui` rebuilds it"
                raise MlflowException(f"{uri} can't be opened ({first_line(error)}): {remedy}") from error
            time.sleep(_RACE_SECONDS)
            store = _open(uri, artifacts, root, sweep, FileLock(locks / "mirroring.lock"))
        finally:
            os.environ["MLFLOW_TRACKING_URI"] = given_uri  # MLflow sets it
    return store


def first_line(error: Exception) -> str:
    """Return the error without the page of SQL or HTML that may follow."""
    return next(iter(str(error).strip().splitlines()), repr(error))


def _open(uri: str, artifacts: Path | None, root: Path, sweep: str | None, mirroring: FileLock) -> Store:
    if uri.startswith(_SQLITE):
        _prepare_database(Path(uri.removeprefix(_SQLITE)))
    mlflow.set_tracking_uri(uri)
    client = MlflowClient(uri)
    given_id, given_name = (os.environ.get(f"MLFLOW_EXPERIMENT_{part}") for part in ("ID", "NAME"))
    name = given_name or (_OWN_EXPERIMENT if artifacts else root.name)
    name = f"{name}-{sweep}" if sweep else name
    experiment = client.get_experiment(given_id) if given_id else client.get_experiment_by_name(name)
    if given_id and given_name and experiment.name != given_name:
        raise MlflowException(f"MLFLOW_EXPERIMENT_ID is {given_id}, and MLFLOW_EXPERIMENT_NAME names another")
    if experiment and experiment.lifecycle_stage == "deleted":
        client.restore_experiment(experiment.experiment_id)
    if experiment and artifacts and experiment.artifact_location != artifacts.as_uri():
        if not experiment.artifact_location.endswith(f"/mlruns/{_OWN_EXPERIMENT}"):
            return Store(client, experiment.experiment_id, None, mirroring)  # the user made it
        # The project moved. MLflow keeps absolute paths and has no call to change them (mlflow/mlflow#3144).
        client.rename_experiment(experiment.experiment_id, f"{name} before {time.strftime('%Y-%m-%d %H:%M:%S')}")
        experiment = None
    if experiment:
        return Store(client, experiment.experiment_id, artifacts, mirroring)
    created = client.create_experiment(name, artifacts.as_uri() if artifacts else None)
    return Store(client, created, artifacts, mirroring)


def _prepare_database(path: Path) -> None:
    """Create a database, or raise at once if the file is none: MLflow would try to open it for 100 seconds.

    A process that is killed while MLflow makes its tables leaves a broken database, so it gets its name when complete.
    """
    if path.exists():
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA schema_version")
        if not os.access(path, os.W_OK):
            raise PermissionError(f"{path} is not writable")
        return
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    with closing(sqlite3.connect(new)) as connection:
        connection.execute("PRAGMA user_version = 0")
    MlflowClient(f"{_SQLITE}{new}").search_experiments()
    new.replace(path)


def _in_project(uri: str, root: Path) -> str:
    """Resolve a relative path from the project, also for an experiment that DVC runs in a copy."""
    path = uri.removeprefix(_SQLITE)
    if ":" in path or Path(path).is_absolute() or uri.startswith("databricks"):
        return uri
    return f"{_SQLITE}{root / path}" if uri.startswith("sqlite:") else str(root / path)
