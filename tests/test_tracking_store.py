"""Which store, and which experiment in it, and what is told where there can be none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from photofinish.tracking.store import MLFLOW_ERRORS, first_line, open_store

# sqlite3 warns about itself
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")


@pytest.mark.parametrize(("given", "database"), [("sqlite:///own.db", "own.db"), ("sqlite:////{}/far.db", "far.db")])
def test_a_relative_store_lies_in_the_project_wherever_a_stage_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, database: str
) -> None:
    """As `dvc exp run --queue` runs it in a copy that is thrown away."""
    project, copy = tmp_path / "project", tmp_path / "copy"
    project.mkdir()
    copy.mkdir()
    monkeypatch.chdir(copy)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", given.format(project))
    open_store(project, tmp_path / "state")
    assert (project / database).is_file()
    assert not list(copy.iterdir())


@pytest.mark.parametrize(
    ("uri", "given", "name"),
    [
        (None, None, "photofinish"),
        (None, "mine", "mine"),
        ("sqlite:///own.db", None, "project"),
        ("sqlite:///own.db", "mine", "mine"),
    ],
)
def test_the_experiment_is_the_one_that_was_named_else_the_projects_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_database: Path, uri: str | None, given: str | None, name: str
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    for database in ("mlflow.db", "own.db"):
        shutil.copy(empty_database, project / database)
    for variable, value in {"MLFLOW_TRACKING_URI": uri, "MLFLOW_EXPERIMENT_NAME": given}.items():
        monkeypatch.setenv(variable, value or "")
    store, sweep = open_store(project, tmp_path / "state"), open_store(project, tmp_path / "state", "batches")
    assert store.client.get_experiment(store.experiment_id).name == name
    assert store.client.get_experiment(sweep.experiment_id).name == f"{name}-batches"


def test_an_experiment_of_the_users_own_is_found_by_its_id_and_keeps_the_place_of_its_artifacts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_database: Path
) -> None:
    shutil.copy(empty_database, tmp_path / "mlflow.db")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    own = client.create_experiment("own", (tmp_path / "elsewhere").as_uri())
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", own)
    store = open_store(tmp_path, tmp_path / "state")
    assert (store.experiment_id, store.local_artifacts) == (own, None)
    assert client.get_experiment(own).artifact_location == (tmp_path / "elsewhere").as_uri()
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "another")
    with pytest.raises(MLFLOW_ERRORS, match="names another"):
        open_store(tmp_path, tmp_path / "state")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", "4711")
    with pytest.raises(MLFLOW_ERRORS) as raised:
        open_store(tmp_path, tmp_path / "state")
    assert "change MLFLOW_EXPERIMENT_ID" in first_line(raised.value)


@pytest.mark.parametrize(
    ("uri", "told"),
    [
        ("postgresql+nosuchdriver://db", "change MLFLOW_TRACKING_URI"),
        ("mysql+pymysql://db/mlflow", "No module named 'pymysql'; MLFLOW_TRACKING_URI"),
        ("ftp://db", "change MLFLOW_TRACKING_URI"),
        ("postgresql:db", "change MLFLOW_TRACKING_URI"),
        ("sqlite:///damaged.db", "the database is damaged: move its file away"),
    ],
)
def test_a_store_that_can_not_be_opened_is_told_in_a_line_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uri: str, told: str
) -> None:
    (tmp_path / "damaged.db").write_bytes(b"no database at all" * 1000)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(MLFLOW_ERRORS) as raised:
        open_store(tmp_path, tmp_path / "state")
    line = first_line(raised.value)
    assert told in line
    assert "\n" not in line


def test_a_server_that_does_not_know_its_own_name_is_told_of_with_what_to_do() -> None:
    answered = MlflowException("error code 403 != 200. Response body: 'Invalid Host header - possible DNS rebinding'")
    assert first_line(answered).endswith("--allowed-hosts and its name and port as in MLFLOW_TRACKING_URI")


def test_mlflow_sends_no_telemetry(tmp_path: Path) -> None:
    asked = (
        "import photofinish.tracking.store, os\n"
        "from mlflow.environment_variables import MLFLOW_DISABLE_TELEMETRY as disabled\n"
        "from mlflow.telemetry import get_telemetry_client\n"
        "print(disabled.get(), os.environ['DO_NOT_TRACK'], get_telemetry_client())"
    )
    bare = {key: value for key, value in os.environ.items() if key not in ("MLFLOW_DISABLE_TELEMETRY", "DO_NOT_TRACK")}
    ran = subprocess.run([sys.executable, "-c", asked], cwd=tmp_path, env=bare, capture_output=True, text=True)
    assert ran.stdout.split() == ["True", "true", "None"], ran.stderr
