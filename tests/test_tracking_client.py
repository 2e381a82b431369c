"""A stage waits for MLflow no longer than its limit, and its training goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import psutil
import pytest
from training_stage import wait_for

from photofinish.errors import TerminatedError
from photofinish.results import EpochMetrics, EpochTiming
from photofinish.tracking import client
from photofinish.tracking.client import Tracker

if TYPE_CHECKING:
    from photofinish.config.experiment import Experiment

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
    tracker.start("small", "cpu", cast("Experiment", "settings"), "key", "", {"train": 600})
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
    fake_worker: FakeWorker, capfd: pytest.CaptureFixture[str]
) -> None:
    fake_worker(HANGING_START)
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
