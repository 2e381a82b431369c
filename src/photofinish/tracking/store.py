"""MLflow's store, with this project's experiment, and the processes that write runs."""

from __future__ import annotations

import json
import logging
import os
import platform
import sqlite3
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import mlflow
import psutil
from filelock import FileLock
from mlflow import MlflowClient
from mlflow.entities import LoggedModel, Run
from mlflow.exceptions import MlflowException

from photofinish.errors import UserError
from photofinish.tracking import OWN_EXPERIMENT, experiment_name, first_line
from photofinish.tracking.documents import TAG_PROCESS

_LOCATIONS = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
)
"""Tables and columns of MLflow's database that name folders of artifacts."""
_SQLITE = "sqlite:///"


@dataclass(frozen=True)
class Store:
    """Open tracking store, with the MLflow experiment that holds this project's runs."""

    client: MlflowClient
    experiment_id: str
    local_artifacts: Path | None
    """Folder of artifacts in the project's own store. None in a shared store."""
    lock: FileLock
    """Lock for finding or creating a run, so that only one process creates it."""

    def find_runs(self, filter_string: str = "") -> list[Run]:
        """Return all matching runs of this project, the newest first."""
        found: list[Run] = mlflow.search_runs(
            [self.experiment_id], filter_string, output_format="list"
        )
        return found

    def logged_model(self, run: Run) -> LoggedModel | None:
        """Return the model that the run logged, or None if there is none or it was deleted."""
        for output in run.outputs.model_outputs:
            with suppress(MlflowException):
                return self.client.get_logged_model(output.model_id)
        return None


def process_tag() -> str:
    """Return a tag that identifies this process as the writer of a run."""
    return json.dumps([platform.node(), os.getpid(), psutil.Process().create_time()])


def is_live(store: Store, run: Run) -> bool:
    """Return False if the run has ended or its process is gone.

    A run from another machine counts as live until that machine ends it. In the project's own
    store, another machine's name is a former one of this container.
    """
    tag = run.data.tags.get(TAG_PROCESS)
    if run.info.status != "RUNNING" or not tag:
        return bool(run.info.status == "RUNNING")
    host, process_id, began_seconds = json.loads(tag)
    if host != platform.node():
        return store.local_artifacts is None
    try:
        return bool(abs(psutil.Process(process_id).create_time() - began_seconds) <= 1)
    except psutil.NoSuchProcess:
        return False


def close_abandoned_runs(store: Store) -> None:
    """End each run whose process is gone. After SIGKILL, MLflow would always show it as running."""
    for run in store.find_runs("attributes.status = 'RUNNING'"):
        if not is_live(store, run):
            store.client.set_terminated(run.info.run_id, "KILLED")


def open_store(root: Path, state: Path) -> Store:
    """Open the store that MLFLOW_TRACKING_URI names, or else the project's own store."""
    for library in ("mlflow", "alembic"):
        logging.getLogger(library).setLevel(logging.ERROR)
    variable = os.environ.get("MLFLOW_TRACKING_URI", "")
    uri = variable or f"{_SQLITE}mlflow.db"
    if uri.startswith(_SQLITE):  # DVC may run an experiment in a copy of the project
        uri = f"{_SQLITE}{root / uri.removeprefix(_SQLITE)}"
    artifacts = None if variable else root / "mlruns" / OWN_EXPERIMENT
    name = experiment_name(root, state, is_shared=bool(variable))
    locks = state / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    lock = FileLock(locks / "mlflow.lock")
    try:
        with lock:
            return _open(uri, artifacts, name, lock)
    except Exception as error:
        move = "move the file away, and `photofinish ui` rebuilds it"
        remedy = "change MLFLOW_TRACKING_URI" if variable else move
        text = f"{uri} can't be opened ({first_line(error)}): {remedy}"
        raise UserError(text) from error
    finally:
        os.environ["MLFLOW_TRACKING_URI"] = variable  # set_tracking_uri changed it


def _open(uri: str, artifacts: Path | None, name: str, lock: FileLock) -> Store:
    if uri.startswith(_SQLITE):
        _prepare_database(Path(uri.removeprefix(_SQLITE)))
    mlflow.set_tracking_uri(uri)
    client = MlflowClient(uri)
    users_id = os.environ.get("MLFLOW_EXPERIMENT_ID")
    find = client.get_experiment if users_id else client.get_experiment_by_name
    experiment = find(users_id or name)
    if experiment and experiment.lifecycle_stage == "deleted":
        client.restore_experiment(experiment.experiment_id)
    location = artifacts.as_uri() if artifacts else None
    own_location = location if name == OWN_EXPERIMENT and not users_id else None
    if experiment and own_location and experiment.artifact_location != own_location:
        database = Path(uri.removeprefix(_SQLITE))
        _move_locations(database, experiment.artifact_location, own_location)
    new_id = None if experiment else client.create_experiment(name, location)
    experiment_id = new_id or experiment.experiment_id
    return Store(client, experiment_id, artifacts if own_location else None, lock)


def _move_locations(database: Path, before: str, location: str) -> None:
    """Make the database name the folder of artifacts where it is, after the project was moved.

    MLflow keeps absolute paths and has no function for this: mlflow/mlflow#3144.
    """
    with closing(sqlite3.connect(database)) as connection, connection:
        for table, column in _LOCATIONS:
            connection.execute(
                f"UPDATE {table} SET {column} = :location || substr({column}, :length + 1) "  # noqa: S608  # names of our own
                f"WHERE substr({column}, 1, :length) = :before",
                {"location": location, "before": before, "length": len(before)},
            )


def _prepare_database(path: Path) -> None:
    """Create a database. If the file exists, raise unless it is a database.

    MLflow would retry such a file for 100 seconds. A new database gets its name once it is
    complete, as a process may be killed before.
    """
    if path.exists():
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA schema_version")
        return
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    with closing(sqlite3.connect(new)) as connection:
        connection.execute("PRAGMA user_version = 0")  # raises if the folder is missing
    MlflowClient(f"{_SQLITE}{new}").search_experiments()
    new.replace(path)
