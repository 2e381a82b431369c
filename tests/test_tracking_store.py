"""Which store is opened, which experiment in it, and what is reported if there is none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from mlflow import MlflowClient

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
    assert "4711" in first_line(raised.value)


@pytest.mark.parametrize(
    ("uri", "problem"),
    [
        ("postgresql+nosuchdriver://db", "Can't load plugin"),
        ("mysql+pymysql://db/mlflow", "No module named 'pymysql'"),
        ("ftp://db", "unsupported URI"),
        ("postgresql:db", "Could not parse"),
        ("sqlite:///damaged.db", "file is not a database"),
        ("sqlite:///folder", "unable to open database file"),
        ("sqlite:///nowhere/mlflow.db", "unable to open database file"),
        ("", "unable to open database file"),
    ],
)
def test_a_store_that_can_not_be_opened_is_reported_at_once_in_a_line_with_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uri: str, problem: str
) -> None:
    (tmp_path / "damaged.db").write_bytes(b"no database at all" * 1000)
    (tmp_path / "folder").mkdir()
    (tmp_path / "mlflow.db").mkdir()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    began_seconds = time.monotonic()
    with pytest.raises(MLFLOW_ERRORS) as raised:
        open_store(tmp_path, tmp_path / "state")
    assert time.monotonic() - began_seconds < 20  # MLflow itself tries for 100 seconds
    line = first_line(raised.value)
    assert problem in line
    assert (uri.rpartition("/")[2] or "mlflow.db") in line
    assert "\n" not in line


def test_a_database_that_is_not_writable_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_database: Path
) -> None:
    shutil.copy(empty_database, tmp_path / "mlflow.db")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr("os.access", lambda *_: False)  # root may write everything
    with pytest.raises(MLFLOW_ERRORS, match="is not writable"):
        open_store(tmp_path, tmp_path / "state")


def test_after_a_move_the_project_has_a_new_experiment_and_the_old_one_keeps_its_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_database: Path
) -> None:
    shutil.copy(empty_database, tmp_path / "mlflow.db")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    store = open_store(tmp_path, tmp_path / "state")
    assert open_store(tmp_path, tmp_path / "state").experiment_id == store.experiment_id
    names = {experiment.name: experiment for experiment in store.client.search_experiments()}
    assert names["photofinish"].artifact_location == (tmp_path / "mlruns/photofinish").as_uri()
    assert len([name for name in names if name.startswith("photofinish before ")]) == 1


def test_two_processes_that_open_a_new_store_at_once_find_the_same_experiment(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; from photofinish.tracking.store import open_store; import sys\n"
        "print(open_store(Path(sys.argv[1]), Path(sys.argv[1], sys.argv[2])).experiment_id)"
    )
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MLFLOW_")}
    environment["MLFLOW_TRACKING_URI"] = ""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path), "state"], env=environment, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    answers = [process.communicate()[0] for process in processes]
    assert answers == ["1\n", "1\n"]


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
