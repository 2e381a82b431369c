"""What is promoted is the result on disk, once, with all that it was made from."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import mlflow
import pytest
from conftest import MakeResult
from mlflow import MlflowClient
from result_files import pair_of, trained, write_result, write_trained

from photofinish.errors import MistakeError, UserError
from photofinish.machine.fingerprint import CpuHost
from photofinish.report.report import write_report
from photofinish.results import records
from photofinish.tracking import promotion
from photofinish.tracking.promotion import Promoted, promote, require_current
from photofinish.tracking.store import MLFLOW_ERRORS, Store, first_line
from photofinish.tracking.sync import sync_all

# sqlite3 and MLflow's readers of old formats warn about themselves
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore:.*unpickl.*", "ignore::DeprecationWarning")

NAME = "small-mlp"
REGISTERED = f"photofinish-{NAME}"


@pytest.fixture
def results(tmp_path: Path, make_result: MakeResult) -> Path:
    """A training on the CPU with its weights, and no accelerator."""
    write_trained(tmp_path / "results", trained(make_result, NAME))
    write_result(tmp_path / "results", make_result(NAME, "gpu", unavailable="no accelerator"))
    return tmp_path / "results"


@pytest.fixture
def report(tmp_path: Path, make_result: MakeResult) -> Path:
    write_report([pair_of(make_result(NAME), make_result(NAME, "gpu"))], tmp_path / "report")
    return tmp_path / "report"


def test_the_model_has_data_code_fingerprint_and_report_in_the_registry_and_loads_by_its_alias(
    store: Store, results: Path, report: Path, cpu_host: CpuHost
) -> None:
    sync_all(store, [NAME], results, report)
    assert promote(store, NAME, "cpu", results, report, "champion") == Promoted(REGISTERED, "1", True)
    found = store.client.get_model_version_by_alias(REGISTERED, "champion")
    assert found.tags["sha256.data"] == "d" * 64
    assert found.tags["git.commit"] == "not known"
    assert CpuHost.model_validate_json(found.tags["host.fingerprint"]) == cpu_host
    assert mlflow.artifacts.load_text(found.tags["photofinish.report"]) == (report / "index.html").read_text()
    (answer,) = (line for line in (report / "comparison.md").read_text().splitlines() if line.startswith("* **"))
    assert answer in found.description
    assert "\n  * " in found.description
    loaded = mlflow.pytorch.load_model(f"models:/{REGISTERED}@champion")
    assert not loaded.training


def test_the_same_result_has_one_version_and_another_one_the_next(store: Store, results: Path, report: Path) -> None:
    sync_all(store, [NAME], results, report)
    for alias in ("champion", "champion", "challenger"):
        assert promote(store, NAME, "cpu", results, report, alias).version == "1"
    file = results / NAME / "cpu" / records.TIMED / records.TIMINGS
    timings = records.read_record(file, records.Timings)
    records.write_record(file, timings.model_copy(update={"total_seconds": 31.0}))
    with pytest.raises(UserError, match=r"MLflow hasn't all of small-mlp on cpu .*`make ui`"):
        promote(store, NAME, "cpu", results, report, "champion")
    sync_all(store, [NAME], results, report)
    assert promote(store, NAME, "cpu", results, report, "champion") == Promoted(REGISTERED, "2", True)
    aliases = store.client.get_registered_model(REGISTERED).aliases
    assert {alias: int(version) for alias, version in aliases.items()} == {"champion": 2, "challenger": 1}


def test_whatever_mlflows_experiment_is_called_the_registry_takes_the_models_name(
    store: Store, results: Path, report: Path
) -> None:
    store.client.rename_experiment(store.experiment_id, "Anna's: a/b")
    sync_all(store, [NAME], results, report)
    for is_new in (True, False):
        assert promote(store, NAME, "cpu", results, report, "champion") == Promoted(f"Anna-s- a-b-{NAME}", "1", is_new)


def test_a_device_that_was_not_there_has_no_model(store: Store, results: Path, report: Path) -> None:
    with pytest.raises(UserError, match="was not trained on gpu"):
        promote(store, NAME, "gpu", results, report, "champion")


def test_a_store_without_a_registry_is_told_in_a_line(store: Store, results: Path, report: Path) -> None:
    sync_all(store, [NAME], results, report)
    without = replace(store, client=MlflowClient(store.client.tracking_uri, "ftp://nowhere"))
    with pytest.raises(MLFLOW_ERRORS) as raised:
        promote(without, NAME, "cpu", results, report, "champion")
    assert "Registry features are not supported by the store with URI: 'ftp://nowhere'" in first_line(raised.value)


@pytest.mark.parametrize(
    ("status", "problem"),
    [
        ({"train-cpu@small": [{"changed deps": {"data/plan/hosts/cpu.json": "modified"}}]}, r"\(train-cpu@small\)"),
        ({}, None),
    ],
)
def test_a_result_that_is_not_up_to_date_is_refused_with_the_stages_that_would_run(
    monkeypatch: pytest.MonkeyPatch, status: dict[str, object], problem: str | None
) -> None:
    told = subprocess.CompletedProcess("dvc", 0, json.dumps(status), "")
    monkeypatch.setattr(subprocess, "run", lambda *_arguments, **_settings: told)
    if problem is None:
        require_current("small", "cpu", "digits")
        return
    with pytest.raises(UserError, match=f"isn't up to date {problem}: run `dvc repro`"):
        require_current("small", "cpu", "digits")


@pytest.mark.parametrize("alias", ["latest", "V2", "my champion", ""])
def test_an_alias_that_mlflow_keeps_for_itself_is_refused_before_anything_is_registered(
    monkeypatch: pytest.MonkeyPatch, alias: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["promotion", NAME, "--alias", alias])
    with pytest.raises(MistakeError, match=f"ALIAS={alias}"):
        promotion.main()
