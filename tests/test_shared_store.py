"""Several clones tell one MLflow of their results: each is there once, beside the others'."""

from __future__ import annotations

import json
import platform
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import MakeResult
from result_files import trained, write_trained

from photofinish.machine.fingerprint import CpuTarget
from photofinish.results import records
from photofinish.tracking import documents
from photofinish.tracking.documents import training_document
from photofinish.tracking.mirror import create_run
from photofinish.tracking.store import Store
from photofinish.tracking.sync import sync_all, sync_experiments

# sqlite3 and MLflow's readers of old formats warn about themselves
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore:.*unpickl.*", "ignore::DeprecationWarning")

NAME = "small-mlp"


@pytest.fixture
def shared(store: Store) -> Store:
    return replace(store, local_artifacts=None)


@pytest.fixture
def results(tmp_path: Path, make_result: MakeResult) -> Path:
    write_trained(tmp_path / "results", trained(make_result, NAME))
    return tmp_path / "results"


def timed(results: Path, **changes: Any) -> Path:
    """The same result, but for what is told of when and where."""
    path = results / NAME / "cpu" / records.TIMINGS_FOLDER / records.TIMINGS
    records.write_record(path, records.read_record(path, records.Timings).model_copy(update=changes))
    return results


def current(store: Store) -> dict[str, str]:
    return {run.info.run_name: run.data.tags[documents.TAG_CURRENT] for run in store.find_runs()}


def test_another_machines_result_stays_current_beside_this_ones_and_its_own_earlier_one_does_not(
    shared: Store, results: Path, cpu_host: CpuTarget
) -> None:
    sync_experiments(shared, [NAME], results)
    larger = cpu_host.model_copy(update={"cpu": replace(cpu_host.cpu, usable_cores=96)})
    sync_experiments(shared, [NAME], timed(results, host=larger, host_name="lab"))
    assert current(shared) == {f"{NAME}/cpu@{platform.node()}": "true", f"{NAME}/cpu@lab": "true"}
    sync_experiments(shared, [NAME], timed(results, host=larger, host_name="lab2"))
    assert current(shared) == {
        f"{NAME}/cpu@{platform.node()}": "true",
        f"{NAME}/cpu@lab": "false",
        f"{NAME}/cpu@lab2": "true",
    }


def test_who_trained_elsewhere_is_not_made_up(shared: Store, results: Path) -> None:
    sync_experiments(shared, [NAME], timed(results, host_name="lab"))
    sync_experiments(shared, [NAME], timed(results, host_name=platform.node()))
    users = {run.data.tags["host.name"]: run.data.tags.get("mlflow.user") for run in shared.find_runs()}
    assert users == {"lab": None, platform.node(): psutil.Process().username()}


def test_of_two_runs_that_clones_made_of_one_result_in_the_same_moment_one_is_left(
    shared: Store, results: Path
) -> None:
    document = training_document(NAME, "cpu", results)
    assert document
    for _ in range(2):
        create_run(shared, document.facts, {documents.TAG_RESULT: document.result})
    sync_experiments(shared, [NAME], results)
    (run,) = shared.find_runs()
    assert run.info.status == "FINISHED"


def test_a_result_that_another_clone_is_sending_is_left_to_it(shared: Store, results: Path) -> None:
    document = training_document(NAME, "cpu", results)
    assert document
    sending = json.dumps(["lab", 1, time.time() - 60])
    create_run(shared, document.facts, {documents.TAG_RESULT: document.result, documents.TAG_PROCESS: sending})
    assert sync_experiments(shared, [NAME], results) == 0
    (run,) = shared.find_runs()
    assert not run.outputs.model_outputs


def test_under_its_old_name_a_renamed_experiment_is_no_longer_current_where_the_store_is_the_projects_own(
    store: Store, shared: Store, results: Path
) -> None:
    sync_all(store, [NAME], results, results)
    (results / NAME).rename(results / "renamed")
    sync_all(shared, ["renamed"], results, results)
    assert set(current(store).values()) == {"true"}  # for it may be another's
    sync_all(store, [], results, results)  # as where data/plan was deleted
    assert set(current(store).values()) == {"true"}
    sync_all(store, ["renamed"], results, results)
    assert current(store)[f"{NAME}/cpu"] == "false"
