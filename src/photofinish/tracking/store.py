"""The MLflow store: which one, made once however many processes start at once, and found again after a move."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

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
from mlflow.exceptions import MlflowException  # noqa: E402
from requests import RequestException  # noqa: E402
from sqlalchemy.exc import SQLAlchemyError  # noqa: E402

EXPERIMENT = "photofinish"
MLFLOW_ERRORS = (MlflowException, RequestException, SQLAlchemyError, CommandError, sqlite3.Error, OSError)
"""What MLflow raises when its store or server fails."""


_MOVES = tuple(
    f"UPDATE {table} SET {column} = :new || substr({column}, length(:old) + 1) "  # noqa: S608  # names of our own
    f"WHERE substr({column}, 1, length(:old)) = :old"
    for table, column in (
        ("experiments", "artifact_location"),
        ("runs", "artifact_uri"),
        ("logged_models", "artifact_location"),
    )
)


class Store:
    """An open tracking store and the MLflow experiment that holds this project's runs."""

    def __init__(
        self, client: MlflowClient, experiment_id: str, local_artifacts: Path | None, mirroring: FileLock
    ) -> None:
        self.client, self.experiment_id, self.local_artifacts = client, experiment_id, local_artifacts
        self.mirroring = mirroring
        """held while a result is looked up and mirrored, so that two processes don't both find it missing"""


def open_store(root: Path, state: Path) -> Store:
    locks = state / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    mirroring = FileLock(locks / "mirroring.lock")
    uri = _in_project(os.environ.get("MLFLOW_TRACKING_URI"), root)
    # MLflow creates its tables at first use, and breaks the database if several processes do so at once.
    with FileLock(locks / "mlflow.lock"):
        if uri:
            return _open(uri, None, mirroring)
        database, artifacts = root / "mlflow.db", root / "mlruns" / EXPERIMENT
        _follow_move(database, artifacts.as_uri())
        return _open(f"sqlite:///{database}", artifacts, mirroring)


def _in_project(uri: str | None, root: Path) -> str | None:
    """A relative path starts at the project: an experiment that DVC runs in a copy tells the project's store."""
    path = (uri or "").removeprefix("sqlite:///")
    if not uri or ":" in path or Path(path).is_absolute() or uri.startswith("databricks"):
        return uri
    return f"sqlite:///{root / path}" if uri.startswith("sqlite:") else str(root / path)


def first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), repr(error))


def _open(uri: str, artifacts: Path | None, mirroring: FileLock) -> Store:
    mlflow.set_tracking_uri(uri)
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name(EXPERIMENT)
    if experiment is None:
        location = artifacts.as_uri() if artifacts else None
        experiment_id = client.create_experiment(EXPERIMENT, location)
    else:
        experiment_id = experiment.experiment_id
        if experiment.lifecycle_stage == "deleted":
            client.restore_experiment(experiment_id)
    return Store(client, experiment_id, artifacts, mirroring)


def _follow_move(database: Path, artifacts_uri: str) -> None:
    """MLflow keeps absolute addresses of artifacts: after the project's folder moved, they point nowhere."""
    if not database.is_file():
        return
    connection = sqlite3.connect(database)
    try:
        row = connection.execute("SELECT artifact_location FROM experiments WHERE name = ?", [EXPERIMENT]).fetchone()
        if row is None or row[0] == artifacts_uri:
            return
        for update in _MOVES:
            connection.execute(update, {"new": artifacts_uri, "old": row[0]})
        connection.commit()
    except sqlite3.OperationalError as error:
        if "no such table" not in str(error):
            raise
    finally:
        connection.close()
