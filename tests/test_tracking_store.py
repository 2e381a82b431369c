"""Choice of the store and the experiment in it, and the report if there is none."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from mlflow import MlflowClient

from photofinish.errors import UserError
from photofinish.tracking import first_line
from photofinish.tracking.store import Store, open_store

# sqlite3 warns about itself
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_database: Path) -> Path:
    """A folder with the project's own store and another."""
    for variable in ("TRACKING_URI", "EXPERIMENT_NAME", "EXPERIMENT_ID"):
        monkeypatch.setenv(f"MLFLOW_{variable}", "")
    (folder := tmp_path / "project").mkdir()
    for database in ("mlflow.db", "own.db"):
        shutil.copy(empty_database, folder / database)
    return folder


@pytest.mark.parametrize(
    ("uri", "variable", "name"),
    [
        ("", "", "photofinish"),
        ("", "mine", "mine"),
        ("sqlite:///own.db", "", "project"),
        ("sqlite:////{}/own.db", "mine", "mine"),
    ],
)
def test_the_experiment_is_named_by_a_variable_or_the_project_wherever_a_stage_runs(
    project: Path, monkeypatch: pytest.MonkeyPatch, uri: str, variable: str, name: str
) -> None:
    (copy := project.parent / "copy").mkdir()
    monkeypatch.chdir(copy)  # where `dvc exp run --queue` works
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri.format(project))
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", variable)
    store = open_store(project, project / "state")
    assert store.client.get_experiment(store.experiment_id).name == name
    assert not list(copy.iterdir())


def test_a_copied_folder_keeps_its_experiment_and_finds_the_copied_artifacts(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def locations(store: Store) -> list[str]:
        return [
            store.client.get_experiment(store.experiment_id).artifact_location,
            store.client.get_run(run_id).info.artifact_uri,
            store.client.get_logged_model(model_id).artifact_location,
        ]

    store = open_store(project, project / "state")
    run_id = store.client.create_run(store.experiment_id).info.run_id
    model_id = store.client.create_logged_model(store.experiment_id, "net").model_id
    here, before = project.as_uri(), locations(store)
    copy = project.with_name("copy")
    shutil.copytree(project, copy)
    copied = open_store(copy, copy / "state")
    assert copied.experiment_id == store.experiment_id
    assert locations(copied) == [each.replace(here, copy.as_uri()) for each in before]
    assert locations(store) == before
    assert all(each.startswith(here) for each in before)
    assert len(copied.client.search_experiments()) == 2  # with MLflow's own
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:////{project}/own.db")
    shared = open_store(project, project / "state")
    shutil.copytree(project, again := project.with_name("again"))
    assert open_store(again, again / "state").experiment_id == shared.experiment_id


def test_an_experiment_that_the_user_made_is_found_by_its_id_and_keeps_its_artifacts(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = MlflowClient(f"sqlite:///{project}/mlflow.db")
    location = (project / "elsewhere").as_uri()
    experiment_id = client.create_experiment("own", location)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", experiment_id)
    store = open_store(project, project / "state")
    assert (store.experiment_id, store.local_artifacts) == (experiment_id, None)
    assert client.get_experiment(experiment_id).artifact_location == location
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", "4711")
    with pytest.raises(UserError, match="4711"):
        open_store(project, project / "state")


@pytest.mark.parametrize(
    ("uri", "problem"),
    [
        ("postgresql+nosuchdriver://db", "Can't load plugin"),
        ("sqlite:///damaged.db", "file is not a database"),
        ("sqlite:///nowhere/mlflow.db", "unable to open database file"),
    ],
)
def test_a_store_that_cannot_be_opened_is_reported_at_once_in_a_line_with_its_address(
    project: Path, monkeypatch: pytest.MonkeyPatch, uri: str, problem: str
) -> None:
    (project / "damaged.db").write_bytes(b"no database at all" * 1000)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    began_seconds = time.monotonic()
    with pytest.raises(UserError) as raised:
        open_store(project, project / "state")
    assert time.monotonic() - began_seconds < 50  # MLflow itself tries for 100 seconds
    line = first_line(raised.value)
    assert problem in line
    assert uri.rpartition("/")[2] in line
