"""MLflow's store, its runs as they follow from the records, and a stage's wait for it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import psutil
import pytest
from conftest import MakeExperiment, MakeResult
from mlflow import MlflowClient
from result_files import BUSY, trained, with_record, write_result, write_scores
from training_stage import wait_for

from photofinish.config.experiment import Experiment, ExperimentPlan
from photofinish.errors import TerminatedError, UserError
from photofinish.results import EpochMetrics, EpochTiming, records
from photofinish.results.figures import FIGURES
from photofinish.tracking import client, documents, first_line, run_metrics
from photofinish.tracking.client import Tracker
from photofinish.tracking.documents import RunDocument, run_params, training_document
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


def test_a_copied_folder_has_its_artifacts(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def document_of(results: Path) -> RunDocument:
    document = training_document("small-mlp", "cpu", results)
    assert document
    return document


def values(document: RunDocument) -> dict[str, float]:
    return {metric.key: metric.value for metric in document.metrics}


def test_settings_become_flat_parameters(make_experiment: MakeExperiment) -> None:
    weights = {"cats, dogs": 2.0, "other": 1.0}  # MLflow refuses a comma in a key
    model = {"name": "./net.py:Net", "weights": weights, "größe": {"deep": 3}}
    params = run_params(make_experiment(epochs=7, model=model), "cpu")
    expected = {
        "optimizer.lr": "0.1",
        "epochs": "7",
        "device": "cpu",
        "model.weights": str(weights),
        "model.größe.deep": "3",
    }
    assert expected.items() <= params.items()
    plan = ExperimentPlan.model_validate(make_experiment(epochs=7, model=model).model_dump())
    assert run_params(plan, "cpu") == params  # of a run while it trains


def test_every_epoch_has_each_metric_at_its_step(tmp_path: Path, make_result: MakeResult) -> None:
    write_result(tmp_path, make_result(epoch_seconds=(2.0, 4.0)))
    document = document_of(tmp_path)
    steps: dict[int, set[str]] = {run_metrics.ONCE: set(), 1: set(), 2: set()}
    for metric in document.metrics:
        assert metric.key not in steps[metric.step]
        steps[metric.step].add(metric.key)
        assert metric.timestamp == 1_700_000_000_000
    assert steps[1] == steps[2]
    assert {"training_loss", "validation_loss", "images_per_second"} < steps[1]
    once = {figure.mlflow for figure in FIGURES if figure.mlflow}
    assert once - {"peak_memory_bytes", "peak_host_memory_bytes"} <= steps[run_metrics.ONCE]
    assert not steps[run_metrics.ONCE] & steps[1]
    assert values(document)["images_per_second"] == 600 / 4.0
    assert (document.started_ms, document.duration_ms) == (1_700_000_000_000, 30_000)


def test_a_training_is_described_by_its_own_answer(tmp_path: Path, make_result: MakeResult) -> None:
    write_result(tmp_path, make_result())
    header = "experiment,device,answer,answer_reason,measured_at_unix_seconds"
    for began, is_its in ((1.7e9, True), (1.6e9, False)):
        row = f"small-mlp,cpu,No,start-up,{began}"
        (tmp_path / documents.REPORT_TABLE).write_text(f"{header}\n{row}\n")
        lines = ["No, don't rent: 60 s here.", "Next: stay on this CPU."]
        shown = [{"job": "small-mlp", "verdict": "No, don't rent", "saves": "0-2 s"}]
        found = {"answers": {"small-mlp": {"answer": "No", "lines": lines}}, "overview": shown}
        (tmp_path / documents.REPORT_ANSWERS).write_text(json.dumps(found))
        answers = documents.answers_of(tmp_path)
        document = training_document("small-mlp", "cpu", tmp_path, answers)
        assert document
        is_answered = document.tags[documents.TAG_NOTE].startswith("\n\n".join(lines))
        assert is_answered is is_its
        columns = [document.tags.get(tag) for tag in ("verdict", "time", "saves")]
        assert columns == (["No, don't rent", "30 s", "0-2 s"] if is_its else [None, "30 s", None])
        assert (document.mirrored != document_of(tmp_path).mirrored) is is_its
    older = json.dumps({"answers": {"small-mlp": {"answer": "No"}}})
    (tmp_path / documents.REPORT_ANSWERS).write_text(older)
    assert documents.answers_of(tmp_path) == documents.answers_of(tmp_path / "none") == {}


def test_a_busy_run_says_how_to_measure_again(tmp_path: Path, make_result: MakeResult) -> None:
    for load, warning in (((), None), ((BUSY,), "other programs used 40% of the cores")):
        write_result(tmp_path, make_result(load=load))
        tags = document_of(tmp_path).tags
        assert (warning or "") in tags.get(documents.TAG_BUSY, "")
        command = "`photofinish run --force --single-item train-cpu@small-mlp && photofinish run`"
        assert (
            (command in tags[documents.TAG_NOTE]) is (documents.TAG_BUSY in tags) is bool(warning)
        )


def test_scores_complete_the_run_and_description(tmp_path: Path, make_result: MakeResult) -> None:
    result = trained(make_result, accuracy=0.875)
    write_result(tmp_path, result)
    before = document_of(tmp_path)
    metrics = {"accuracy": 0.25, "top": 0.9}  # a custom metric does not replace the accuracy
    scores = result.scores.model_copy(update={"metrics": metrics})
    write_scores(tmp_path, replace(result, scores=scores))
    after = document_of(tmp_path)
    assert after.result == before.result
    assert after.mirrored != before.mirrored
    shown = values(after)
    assert (shown["test_accuracy"], shown["test_top"]) == (0.875, 0.9)
    assert not [key for key in values(before) if key.startswith("test_")]
    notes = [document.tags[documents.TAG_NOTE] for document in (before, after)]
    for part in ("mlp", "small", "Some CPU", "3 epochs of 3 s", "30 s"):
        assert part in notes[0]
        assert part in notes[1]
    assert [("87.50% test accuracy" in note) for note in notes] == [False, True]


def test_scores_of_other_weights_are_not_shown(tmp_path: Path, make_result: MakeResult) -> None:
    result = trained(make_result)
    write_result(tmp_path, result)
    unjudged = document_of(tmp_path)
    write_result(tmp_path, gpu := trained(make_result, device="gpu"))
    write_scores(tmp_path, gpu)
    assert values(document_of(tmp_path)) == values(unjudged)
    write_scores(tmp_path, result)
    write_result(tmp_path, with_record(result, weights_sha256="e" * 64))
    document = document_of(tmp_path)
    assert values(document) == values(unjudged)
    assert records.EVALUATION not in {path.name for path, _ in document.files}


def test_an_incomplete_result_has_no_run(tmp_path: Path, make_result: MakeResult) -> None:
    folder = write_result(tmp_path, make_result())
    (folder / records.TIMINGS_FOLDER / records.TIMINGS).unlink()
    assert training_document("small-mlp", "cpu", tmp_path) is None


LIMIT_SECONDS = 2.0
MARGIN_SECONDS = 20.0
"""Time for the start of a Python on a busy machine. The workers here take minutes."""
ANSWERING = """
import json, os, time
from pathlib import Path
def __getattr__(function):
    def call(*arguments):
        if function != "open_project":
            with Path("calls.jsonl").open("a") as file:
                fields = lambda value: getattr(value, "__dict__", "")
                text = json.dumps([function, *arguments], default=fields)
                file.write(text + "\\n")
    return call
"""
HANGING_START = "import time; time.sleep(600)"
HANGING = ANSWERING + "def start(*_):\n    time.sleep(600)\n"
DYING = "import os; os._exit(3)"
FAILING = "def open_project():\n    raise OSError('the disk is full\\nand more')\n"
SLOW = ANSWERING + "def epochs(*_):\n    time.sleep(0.2)\n"

FakeWorker = Callable[[str], None]


@pytest.fixture
def fake_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeWorker:
    """Put another module in the place of the worker's, with a server's time limit."""

    def put(code: str) -> None:
        (tmp_path / "fake_worker.py").write_text(code, encoding="utf-8")
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setattr(client, "WORKER", "fake_worker")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking.example")
    monkeypatch.setattr(client, "FLUSH_SECONDS", 0.0)
    monkeypatch.setattr(client, "REMOTE_SECONDS", 60.0)
    return put


def train(tracker: Tracker, epochs: int = 100) -> None:
    """Make the calls of a training."""
    tracker.start("small", "cpu", cast(Experiment, "settings"), "key", "", {"train": 600})
    tracker.wait_until_ready()
    for epoch in range(epochs):
        metrics = EpochMetrics(epoch, 0.1, 0.5, 0.5)
        tracker.epoch_ended(metrics, EpochTiming(0.5, 0.1, 1.7e9))
    tracker.training_ended("small", "cpu", Path("results"), [])


def calls(folder: Path) -> list[list[Any]]:
    return [
        json.loads(line)
        for line in (folder / "calls.jsonl").read_text(encoding="utf-8").splitlines()
    ]


def workers() -> list[psutil.Process]:
    """Return this process's children that multiprocessing started and that still run."""
    children = [
        child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE
    ]
    with suppress(psutil.NoSuchProcess):
        return [child for child in children if "spawn_main" in str(child.cmdline())]
    return children


@pytest.mark.parametrize(
    ("worker", "reason"),
    [
        (HANGING, "it does not answer in time"),
        (DYING, "its process ended"),
        (FAILING, "the disk is full"),
    ],
)
def test_a_worker_that_fails_costs_a_stage_no_more_than_the_limit_and_is_reported_once(
    fake_worker: FakeWorker,
    monkeypatch: pytest.MonkeyPatch,
    worker: str,
    reason: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    fake_worker(worker)
    if worker == HANGING:
        monkeypatch.setattr(client, "REMOTE_SECONDS", LIMIT_SECONDS)
    began_seconds, threads = time.monotonic(), threading.active_count()
    with Tracker() as tracker:
        train(tracker)
    assert threading.active_count() == threads  # one that outlives it races with Python's exit
    assert time.monotonic() - began_seconds < LIMIT_SECONDS + MARGIN_SECONDS
    assert (
        capfd.readouterr().err
        == f"MLflow: {reason}. The run goes on; `photofinish ui` sends what was missed.\n"
    )
    wait_for(lambda: not workers())


def test_a_worker_gets_every_call_in_order_also_one_that_is_slower_than_the_epochs(
    fake_worker: FakeWorker, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fake_worker(ANSWERING)
    with Tracker() as tracker:
        train(tracker)
    made = calls(tmp_path)
    assert [made[0][0], made[-1][0]] == ["start", "training_ended"]
    assert [
        metrics["epoch"] for call in made if call[0] == "epochs" for metrics, _ in call[1]
    ] == list(range(100))
    assert len(made) < 100  # epochs that follow quickly go together
    fake_worker(SLOW)
    with Tracker() as tracker:
        train(tracker)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RuntimeError("the loss is no longer finite"), "FAILED"),
        (KeyboardInterrupt(), "KILLED"),
        (TerminatedError("terminated"), "KILLED"),
    ],
)
def test_a_training_that_stops_is_closed_with_its_reason(
    fake_worker: FakeWorker, tmp_path: Path, error: BaseException, status: str
) -> None:
    fake_worker(ANSWERING)

    def stop() -> None:
        with Tracker() as tracker:
            tracker.wait_until_ready()
            raise error

    with pytest.raises(type(error)):
        stop()
    assert calls(tmp_path) == [["stopped", status, str(error) or "KeyboardInterrupt"]]


def test_an_interrupt_does_not_wait_for_a_worker_that_hangs(
    fake_worker: FakeWorker, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    fake_worker(HANGING_START)
    monkeypatch.setattr(client, "_INTERRUPTED_SECONDS", 0.1)
    began_seconds = time.monotonic()
    with pytest.raises(KeyboardInterrupt), Tracker():
        raise KeyboardInterrupt
    assert time.monotonic() - began_seconds < MARGIN_SECONDS
    assert capfd.readouterr().err == ""


def test_a_worker_ends_when_its_stage_is_killed(fake_worker: FakeWorker, tmp_path: Path) -> None:
    fake_worker(
        ANSWERING + "def start(*_):\n    print(os.getpid(), flush=True)\n    time.sleep(600)\n"
    )
    code = (
        "from photofinish.tracking import client\n"
        "client.WORKER = 'fake_worker'\n"
        "import time\nclient.Tracker().start('', '', None, '', '', {'train': 0})\ntime.sleep(600)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment
    ) as stage:
        assert stage.stdout
        worker = psutil.Process(int(stage.stdout.readline()))
        stage.kill()
    assert psutil.wait_procs([worker], timeout=MARGIN_SECONDS)[1] == []
