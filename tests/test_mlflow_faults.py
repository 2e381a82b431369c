"""Whatever becomes of MLflow, training goes on, and the next sync puts right what MLflow shows."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request

import pytest
from conftest import MakeExperiment
from mlflow import MlflowClient
from mlflow.entities import Run
from services import free_port, running
from training_process import Start
from training_stage import TrainingStage, contents, read_until

from photofinish.data.packed import PackedSplit
from photofinish.errors import UserError
from photofinish.machine.fingerprint import CpuTarget
from photofinish.tracking import sync
from photofinish.tracking.documents import TAG_RESTORED

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # SQLAlchemy's, of MLflow's tables
]

EPOCHS = 3
LONG_EPOCHS = 300
"""told one by one: time in which something can happen"""
MOST_DELAY_SECONDS = 10.0
TELLING = Start(mlflow=True, tells_waiting=True)
PATIENT_SECONDS = 60.0
"""so that a server that answers is not given up, how busy the machine may be"""
_CLIENT = "photofinish.tracking.client"
PATIENT = replace(TELLING, settings={f"{_CLIENT}.REMOTE_SECONDS": PATIENT_SECONDS, f"{_CLIENT}.FLUSH_SECONDS": 0.0})
MOST_SYNC_SECONDS = 40  # twice 7.5 for the server, and what it takes where other tests run too
MakeTracked = Callable[..., "Tracked"]


@dataclass(frozen=True)
class Tracked:
    """A training stage in a folder that `sync` and the MLflow UI take for a project."""

    stage: TrainingStage

    @property
    def database(self) -> Path:
        return self.stage.folder / "mlflow.db"

    def run(self) -> Run:
        """The only run that MLflow shows."""
        (run,) = self.runs(self.database)
        return run

    def runs(self, database: Path) -> list[Run]:
        client = MlflowClient(f"sqlite:///{database}")
        experiments = client.search_experiments()
        return list(client.search_runs([experiment.experiment_id for experiment in experiments]))

    def epochs_told(self, run: Run, database: Path) -> Counter[int]:
        """How often MLflow was told each epoch's training loss."""
        told = MlflowClient(f"sqlite:///{database}").get_metric_history(run.info.run_id, "training_loss")
        return Counter(metric.step for metric in told)

    def start(self, *command: str, **environment: str) -> subprocess.Popen[str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "DVC_"))}
        return subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=self.stage.folder,
            env=inherited | {"MLFLOW_DISABLE_TELEMETRY": "true"} | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def sync(self, address: str = "") -> str:
        """As `make ui` does first, in this process; what it printed."""
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as output:
            patch.chdir(self.stage.folder)
            patch.delenv("DVC_ROOT", raising=False)
            patch.setenv("MLFLOW_TRACKING_URI", address)
            patch.setattr(sys, "argv", ["sync"])
            sync.main()
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
        stage = TrainingStage.prepare(folder, make_experiment(**overrides), cpu_host, packed_split.folder)
        plan = folder / "data" / "plan" / "experiments"
        plan.mkdir(parents=True)
        shutil.copy(folder / "small.json", plan)
        shutil.copy(empty_database, folder / "mlflow.db")
        return Tracked(stage)

    return make


@pytest.fixture(scope="session")
def trained_once(make_tracked: MakeTracked) -> Tracked:
    """A training of less than a second that MLflow was told of; what it printed is kept beside it."""
    tracked = make_tracked(epochs=EPOCHS)
    output, _ = (process := tracked.stage.fork(Start(mlflow=True))).communicate()
    assert process.returncode == 0, output
    (tracked.stage.folder / "output.txt").write_text(output, encoding="utf-8")
    return tracked


@pytest.fixture
def trained(trained_once: Tracked, tmp_path: Path) -> Tracked:
    """A copy of it, to be damaged."""
    folder = Path(shutil.copytree(trained_once.stage.folder, tmp_path / "project"))
    out = folder / trained_once.stage.out.relative_to(trained_once.stage.folder)
    return Tracked(replace(trained_once.stage, folder=folder, out=out))


@pytest.fixture
def refusing() -> str:
    return f"http://127.0.0.1:{free_port()}"


@pytest.fixture
def hanging() -> Iterator[str]:
    """A server that takes every connection and never says a word."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(100)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def another_site() -> Iterator[str]:
    """A web server that is no MLflow: it answers everything with a page."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>welcome</html>")

        do_POST = do_GET  # noqa: N815

        def log_message(self, *_arguments: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def delay_seconds(output: str) -> float:
    match = re.search(r"waited ([\d.]+) s for MLflow", output)
    assert match, output
    return float(match[1])


def test_a_training_of_less_than_a_second_has_system_metrics_and_prints_nothing_of_mlflow(
    trained_once: Tracked,
) -> None:
    lines = (trained_once.stage.folder / "output.txt").read_text(encoding="utf-8").splitlines()
    lines = [line for line in lines if "take the times with care" not in line]  # where the machine is busy
    assert len(lines) == EPOCHS
    assert all(line.startswith("small on cpu  epoch ") for line in lines)
    run = trained_once.run()
    assert run.info.status == "FINISHED"
    assert TAG_RESTORED not in run.data.tags
    assert {"system/cpu_utilization_percentage", "system/system_memory_usage_megabytes"} <= run.data.metrics.keys()
    assert trained_once.epochs_told(run, trained_once.database) == Counter(range(1, EPOCHS + 1))


@pytest.mark.filterwarnings("ignore:.*pickle.*")
def test_after_the_project_moved_its_runs_are_sent_again_with_artifacts_and_models_that_are_found(
    trained: Tracked,
) -> None:
    import mlflow.pytorch

    output = trained.sync()
    assert "runs added or completed: 1" in output
    client = MlflowClient(f"sqlite:///{trained.database}")
    experiment = client.get_experiment_by_name("photofinish")
    assert f"#/experiments/{experiment.experiment_id}/runs?workflowType=machine_learning" in output
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.artifact_uri.startswith(trained.stage.folder.as_uri())
    assert {file.path for file in client.list_artifacts(run.info.run_id)} >= {"model", "timings"}
    model = client.get_logged_model(run.outputs.model_outputs[0].model_id)
    assert model.artifact_location.startswith(trained.stage.folder.as_uri())
    assert not mlflow.pytorch.load_model(model.artifact_location).training
    assert trained.sync().startswith("MLflow is up to date\n")


def test_a_store_that_was_deleted_is_rebuilt_with_every_run_once_by_two_processes_that_start_at_once(
    trained: Tracked,
) -> None:
    trained.database.unlink()
    shutil.rmtree(trained.stage.folder / "mlruns")
    processes = [trained.start("photofinish.tracking.sync") for _ in range(2)]
    ended = [(process.communicate()[0], process.returncode) for process in processes]
    assert [code for _, code in ended] == [0, 0], ended
    assert sum("runs added or completed: 1" in output for output, _ in ended) == 1
    run = trained.run()
    assert (run.info.status, run.data.tags[TAG_RESTORED]) == ("FINISHED", "true")
    assert trained.epochs_told(run, trained.database) == Counter(range(1, EPOCHS + 1))


def test_with_a_server_that_hangs_training_is_little_delayed_and_the_next_sync_sends_what_was_missed(
    make_tracked: MakeTracked, trained_once: Tracked, hanging: str
) -> None:
    tracked = make_tracked(epochs=EPOCHS)
    process = tracked.stage.fork(TELLING, MLFLOW_TRACKING_URI=hanging)
    output, _ = process.communicate()
    assert process.returncode == 0, output
    assert delay_seconds(output) <= MOST_DELAY_SECONDS
    assert output.count("MLflow: ") == 1
    assert "Traceback" not in output
    assert contents(tracked.stage.out / "model") == contents(trained_once.stage.out / "model")
    tracked.sync()
    assert tracked.run().data.tags[TAG_RESTORED] == "true"


@pytest.mark.parametrize("server", ["refusing", "hanging", "another_site"])
def test_a_sync_without_a_server_ends_soon_with_one_line(
    trained: Tracked, server: str, request: pytest.FixtureRequest, capfd: pytest.CaptureFixture[str]
) -> None:
    started_seconds = time.monotonic()
    with pytest.raises(UserError, match=r"\AMLflow can't be brought up to date: .*\Z"):
        trained.sync(request.getfixturevalue(server))
    assert time.monotonic() - started_seconds < MOST_SYNC_SECONDS
    assert capfd.readouterr() == ("", "")


@pytest.fixture(scope="module")
def served(trained_once: Tracked, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address of MLflow's UI in a copy of a project that trained once, and its database."""
    folder = Path(shutil.copytree(trained_once.stage.folder, tmp_path_factory.mktemp("served") / "project"))
    database, address = folder / "mlflow.db", f"http://127.0.0.1:{(port := free_port())}"
    # The clients write artifacts themselves, so that they can when it is gone.
    where = ["--no-serve-artifacts", "--default-artifact-root", str(folder / "artifacts")]
    where += ["--backend-store-uri", f"sqlite:///{database}"]
    command = [sys.executable, "-m", "mlflow", "ui", "--port", str(port), "--workers", "1", *where]
    with running(*command, address=address, folder=folder):
        yield address, database


@contextmanager
def between(server: str) -> Iterator[str]:
    """Yield the address of a proxy of the server, which ends with the context."""

    class Proxy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            question = Request(server + self.path, method=self.command)  # noqa: S310
            question.data = self.rfile.read(int(self.headers.get("Content-Length", 0))) or None
            question.add_header("Content-Type", "application/json")
            try:
                with urllib.request.urlopen(question, timeout=30) as answer:  # noqa: S310
                    status, content = answer.status, answer.read()
            except HTTPError as error:
                status, content = error.code, error.read()
            with suppress(OSError):  # nobody waits for it any more
                self.send_response(status)
                self.end_headers()
                self.wfile.write(content)

        do_POST = do_GET  # noqa: N815

        def log_message(self, *_arguments: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as proxy:
        Thread(target=proxy.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{proxy.server_port}"
        proxy.shutdown()


def assert_a_sync_completes_the_run_that_was_left(tracked: Tracked, database: Path, epochs: int) -> None:
    left, *before = tracked.runs(database)
    tracked.sync(f"sqlite:///{database}")
    completed, *others = tracked.runs(database)
    assert (left.info.status, completed.info.status, len(others)) == ("RUNNING", "FINISHED", len(before))
    assert completed.info.run_id == left.info.run_id
    assert tracked.epochs_told(completed, database) == Counter(range(1, epochs + 1))


def test_a_training_whose_server_is_gone_is_little_delayed_and_completed_later(
    make_tracked: MakeTracked, served: tuple[str, Path]
) -> None:
    (server, database), tracked = served, make_tracked(epochs=LONG_EPOCHS)
    with between(server) as address:
        process = tracked.stage.fork(PATIENT, MLFLOW_TRACKING_URI=address)
        read_until(process, "epoch 20/")
    output, _ = process.communicate()
    assert process.returncode == 0, output
    assert delay_seconds(output) <= PATIENT_SECONDS
    assert output.count("MLflow: ") == 1
    assert_a_sync_completes_the_run_that_was_left(tracked, database, LONG_EPOCHS)


def test_a_training_that_diverges_leaves_a_failed_run_with_the_reason(make_tracked: MakeTracked) -> None:
    tracked = make_tracked(optimizer={"name": "sgd", "lr": 1e30, "momentum": 0.9})
    output, _ = (process := tracked.stage.fork(Start(mlflow=True))).communicate()
    assert process.returncode == 1, output
    run = tracked.run()
    assert run.info.status == "FAILED"
    assert "no longer finite" in run.data.tags["mlflow.note.content"]
