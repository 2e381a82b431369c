"""Faults of MLflow: the training goes on, and the next sync completes MLflow's runs."""

from __future__ import annotations

import json
import shutil
import socket
import statistics
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import warm_python
from conftest import MakeExperiment
from mlflow import MlflowClient
from mlflow.entities import Run
from training_process import Start
from training_stage import TrainingStage, clean_environment, contents

from photofinish.data.packed import PackedSplit
from photofinish.machine.fingerprint import CpuTarget
from photofinish.results.records import TrainingTimes, read_record
from photofinish.tracking import mlflow_worker
from photofinish.tracking.client import REMOTE_SECONDS

pytestmark = [
    pytest.mark.slow,
    # SQLAlchemy's, of MLflow's tables, and MLflow's, of its model format
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*pickle.*"),
]

EPOCHS = 3
SYNC = "from photofinish.tracking.mlflow_worker import bring_up_to_date; bring_up_to_date(5000)"
MakeTracked = Callable[..., "Tracked"]


@dataclass(frozen=True)
class Tracked:
    """A training stage in a folder that `sync` takes for a project."""

    stage: TrainingStage

    @property
    def client(self) -> MlflowClient:
        return MlflowClient(f"sqlite:///{self.stage.folder / 'mlflow.db'}")

    def run(self) -> Run:
        """Return the only run of the project's experiment."""
        experiment = self.client.get_experiment_by_name("photofinish")
        (run,) = self.client.search_runs([experiment.experiment_id])
        return run

    def times(self) -> TrainingTimes:
        return read_record(self.stage.out / "timings" / "timings.json", TrainingTimes)

    def logged_epochs(self) -> Counter[int]:
        """Count the values of each epoch's training loss."""
        history = self.client.get_metric_history(self.run().info.run_id, "training_loss")
        return Counter(metric.step for metric in history)

    def start_sync(self) -> subprocess.Popen[str]:
        (self.stage.folder / "sync_now.py").write_text(SYNC, encoding="utf-8")
        return subprocess.Popen(
            [warm_python.executable(), "sync_now.py"],
            cwd=self.stage.folder,
            env=clean_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def sync(self, address: str = "") -> str:
        """Sync in this process as `photofinish ui` does, and return what it printed."""
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as output:
            patch.chdir(self.stage.folder)
            patch.setenv("MLFLOW_TRACKING_URI", address)
            mlflow_worker.bring_up_to_date(5000)
        return output.getvalue()


@pytest.fixture(scope="session")
def make_tracked(
    packed_split: PackedSplit,
    cpu_host: CpuTarget,
    make_experiment: MakeExperiment,
    empty_database: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> MakeTracked:
    def make(**overrides: Any) -> Tracked:
        folder = tmp_path_factory.mktemp("tracked") / "project"
        experiment = make_experiment(**overrides)
        stage = TrainingStage.prepare(folder, experiment, cpu_host, packed_split.folder)
        plan = folder / "data" / "plan" / "experiments"
        plan.mkdir(parents=True)
        shutil.copy(folder / "small.json", plan)
        shutil.copy(empty_database, folder / "mlflow.db")
        return Tracked(stage)

    return make


@pytest.fixture(scope="session")
def trained_once(make_tracked: MakeTracked) -> Tracked:
    """A training of less than a second that was logged live, and its output beside it."""
    tracked, clock = make_tracked(epochs=EPOCHS), [time.time()]
    process = tracked.stage.fork(Start(mlflow=True))
    clock.append(time.time())
    output, _ = process.communicate()
    clock.append(time.time())
    assert process.returncode == 0, output
    (tracked.stage.folder / "output.txt").write_text(output, encoding="utf-8")
    (tracked.stage.folder / "clock.json").write_text(json.dumps(clock), encoding="utf-8")
    return tracked


@pytest.fixture
def trained(trained_once: Tracked, tmp_path: Path) -> Tracked:
    """A copy of it, to be damaged."""
    folder = Path(shutil.copytree(trained_once.stage.folder, tmp_path / "project"))
    out = folder / trained_once.stage.out.relative_to(trained_once.stage.folder)
    return Tracked(replace(trained_once.stage, folder=folder, out=out))


@pytest.fixture
def hanging() -> Iterator[str]:
    """A server that accepts every connection and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(100)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_a_training_of_a_second_is_logged_live_and_prints_nothing(trained_once: Tracked) -> None:
    lines = (trained_once.stage.folder / "output.txt").read_text(encoding="utf-8").splitlines()
    assert [line.partition(",")[0] for line in lines] == [f"small on cpu  {EPOCHS} epochs"]
    run = trained_once.run()
    assert run.info.status == "FINISHED"
    assert trained_once.logged_epochs() == Counter(range(1, EPOCHS + 1))
    # By this, a sync finds the run of a training whose server was gone at its end.
    started = trained_once.times().started_at_unix_seconds
    assert run.info.start_time / 1000 == pytest.approx(started, abs=0.5)


def test_recorded_times_fit_the_wall_clock(trained_once: Tracked) -> None:
    before, begun, ended = json.loads((trained_once.stage.folder / "clock.json").read_bytes())
    times = trained_once.times()
    epochs_seconds = sum(one.training_seconds + one.validation_seconds for one in times.epochs)
    started = times.started_at_unix_seconds
    assert before - 0.05 < started < begun + 0.05
    assert times.data_seconds < times.startup_seconds
    assert times.startup_seconds + epochs_seconds < times.total_seconds
    assert times.tracking_seconds > 0
    last_seconds = times.startup_seconds + epochs_seconds + times.warm_up_seconds
    assert started + last_seconds < times.epochs[-1].ended_at_unix_seconds + 0.05
    whole_seconds = times.total_seconds + times.warm_up_seconds + times.tracking_seconds
    assert started + whole_seconds < ended + 0.05
    median_seconds = statistics.median(one.training_seconds for one in times.epochs)
    assert times.images_per_second * median_seconds == pytest.approx(times.training_image_count)
    assert times.resumed_at_epochs == ()
    assert (times.peak_host_memory_bytes or 0) > 100e6  # torch alone takes as much


def test_a_deleted_store_is_rebuilt_once_by_two_processes_at_once(trained: Tracked) -> None:
    (trained.stage.folder / "mlflow.db").unlink()
    shutil.rmtree(trained.stage.folder / "mlruns")
    processes = [trained.start_sync() for _ in range(2)]
    ended = [(process.communicate()[0], process.returncode) for process in processes]
    assert [code for _, code in ended] == [0, 0], ended
    assert sum("runs added or completed: 1" in output for output, _ in ended) == 1
    assert trained.run().info.status == "FINISHED"
    assert trained.logged_epochs() == Counter(range(1, EPOCHS + 1))


def test_a_server_that_hangs_delays_a_training_little_and_changes_no_result(
    make_tracked: MakeTracked, trained_once: Tracked, hanging: str
) -> None:
    tracked = make_tracked(epochs=EPOCHS)
    process = tracked.stage.fork(Start(mlflow=True), MLFLOW_TRACKING_URI=hanging)
    output, _ = process.communicate()
    assert process.returncode == 0, output
    # One wait for the whole stage. A second one, such as for another call, would double it.
    assert REMOTE_SECONDS < 10
    assert tracked.times().tracking_seconds < 2 * REMOTE_SECONDS
    assert output.count("MLflow: ") == 1
    assert "Traceback" not in output
    assert contents(tracked.stage.out / "model") == contents(trained_once.stage.out / "model")
    tracked.sync()
    assert tracked.logged_epochs() == Counter(range(1, EPOCHS + 1))
