"""Clones share a DVC remote and an MLflow server."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from conftest import ONE_THREAD, Project, clone_project
from mlflow import MlflowClient
from services import WARNS, mlflow_server

from photofinish.tracking import sync

pytestmark = [pytest.mark.slow, WARNS]

PARAMS: dict[str, Any] = {
    "defaults": {"epochs": 1, "batch_size": 128, "optimizer": {"name": "sgd", "lr": 0.1}},
    "devices": ONE_THREAD,
    "datasets": {"digits": {"source": "digits", "validation": 0.15, "test": 0.15}},
    "experiments": {"small": {"dataset": "digits", "model": "linear"}},
}
RESULT, REPORT = "results/small/cpu/timings/timings.json", "report/index.html"


class Team(NamedTuple):
    first: Project
    second: Project
    pulled: str
    """Output of the second one's pull."""
    tracking: str

    def runs(self) -> dict[str, str]:
        """Return the number of cores of all runs, by run id."""
        client = MlflowClient(self.tracking)
        experiments = [experiment.experiment_id for experiment in client.search_experiments()]
        return {
            run.info.run_id: run.data.tags.get("host.usable_cores", run.info.run_name)
            for run in client.search_runs(experiments, order_by=["attributes.start_time"])
        }


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory, empty_database: Path) -> Iterator[Team]:
    """Two clones: the first has trained, committed and pushed, the second has pulled."""
    folder = tmp_path_factory.mktemp("team")
    shutil.copy(empty_database, folder / "server.db")
    with mlflow_server(folder) as tracking:
        first = clone_project(folder / "first" / "project")
        first.environment.update({"MLFLOW_TRACKING_URI": tracking, "CUDA_VISIBLE_DEVICES": ""})
        first.write_params(PARAMS)
        join(first, folder / "remote")
        first.repro()
        sync_in(first)
        first.commit()
        assert first.run("dvc", "push", "--run-cache").returncode == 0
        root = folder / "second" / "project"
        first.git("clone", "--quiet", ".", str(root))
        second = Project(root, first.environment | {"PYTHONPATH": str(root / "src")})
        join(second, folder / "remote")
        yield Team(first, second, second.repro("--pull"), tracking)


def join(project: Project, remote: Path) -> None:
    """Add a remote as `dvc remote add --default --local` does, four times as fast."""
    text = f"[core]\nremote = shared\n['remote \"shared\"']\nurl = {remote}\n"
    (project.root / ".dvc/config.local").write_text(text, encoding="utf-8")


def sync_in(project: Project) -> None:
    """Bring MLflow up to date in this process, which has imported it already."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(project.root)
        for name in ("MLFLOW_TRACKING_URI", "CUDA_VISIBLE_DEVICES", "PYTHONPATH", "PATH"):
            patch.setenv(name, project.environment[name])
        sync.bring_up_to_date(5000)


def test_a_fresh_clone_shows_results_and_report_without_training_and_mlflow_has_each_once(
    team: Team,
) -> None:
    before = team.runs()
    assert "Running stage 'train" not in team.pulled
    for file in (RESULT, REPORT):
        assert (team.second.root / file).read_bytes() == (team.first.root / file).read_bytes()
    sync_in(team.second)
    assert team.runs() == before
    assert len(before) == 2


@pytest.mark.skipif(
    shutil.which("taskset") is None or len(os.sched_getaffinity(0)) < 2,
    reason="needs Linux with two cores, to be another machine with one",
)
def test_other_hardware_trains_for_itself_and_its_result_stands_beside_the_first_ones(
    team: Team,
) -> None:
    core, cores = min(os.sched_getaffinity(0)), len(os.sched_getaffinity(0))
    ran = team.second.run("taskset", "-c", str(core), "dvc", "repro", "--pull", "plan", "train-cpu")
    assert "Running stage 'train-cpu@small'" in ran.stdout, ran.stderr
    sync_in(team.second)  # a busy server doesn't answer the training in time
    client = MlflowClient(team.tracking)
    found = [client.get_run(run_id) for run_id, where in team.runs().items() if where.isdigit()]
    assert {run.data.tags["host.usable_cores"] for run in found} == {"1", str(cores)}
    assert {run.data.tags["photofinish.current"] for run in found} == {"true"}
    assert all("mlflow.user" in run.data.tags for run in found)
