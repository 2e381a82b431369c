"""A stage never waits for MLflow longer than it was allowed to, whatever becomes of the process that talks to it."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from photofinish.errors import TerminatedError
from photofinish.tracking import client
from photofinish.tracking.client import READY_BUT_SLOW, Tracker
from photofinish.tracking.documents import RunFacts

PATIENCE_SECONDS = 1.0
MARGIN_SECONDS = 5.0
"""for starting a Python and ending it, on a busy machine; the workers here would keep a stage for minutes"""
SERVER = "http://tracking.example"

ANSWERING = """
    print('"ready"', flush=True)
    for line in sys.stdin:
        open("heard.jsonl", "a").write(line)
        print('"done"', flush=True)
"""
SLOW = ANSWERING.replace("print('\"done\"'", "time.sleep(0.2), print('\"done\"'")
UNTIL_GO = """
    import os
    while not os.path.exists("go"):
        time.sleep(0.01)
"""
SILENT = "time.sleep(600)"
DEAF = """
    print('"ready"', flush=True)
    time.sleep(600)
"""
DEAF_TO_SIGTERM = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
DYING = "sys.exit(3)"
DYING_LATER = """
    print('"ready"', flush=True)
    sys.stdin.readline()
"""
FAILING = """
    print('"the disk is full"', flush=True)
    sys.exit(1)
"""
NEVER_ENDING = ANSWERING + "    time.sleep(600)\n"

FakeWorker = Callable[[str], None]


@pytest.fixture
def fake_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeWorker:
    """Let another program take the worker's place, and a server that is far away MLflow's."""

    def put(code: str) -> None:
        program = tmp_path / "worker"
        program.write_text(f"#!{sys.executable}\nimport sys, time\n{textwrap.dedent(code)}", encoding="utf-8")
        program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(program))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", SERVER)
    monkeypatch.setattr(client, "_REMOTE_PATIENCE_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr(client, "_FLUSH_SECONDS", 0.0)
    return put


def train(tracker: Tracker, epochs: int = 300) -> None:
    """All that a training tells, without the training."""
    tracker.start(RunFacts("small/cpu", {"tag": "long " * 100}, {}, None), "key", 600)
    tracker.wait_until_ready()
    for epoch in range(epochs):
        tracker.epoch_ended({"epoch": epoch}, {"training_seconds": 0.5})
    tracker.training_ended("small", "cpu", Path("results"), [])


def heard(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "heard.jsonl").read_text(encoding="utf-8").splitlines()]


def epochs_in(messages: list[dict[str, Any]]) -> list[int]:
    return [metrics["epoch"] for message in messages if message["do"] == "epochs" for metrics, _ in message["epochs"]]


@pytest.mark.parametrize(
    ("worker", "reason"),
    [
        pytest.param(SILENT, "it does not answer in time", id="never answers"),
        pytest.param(DEAF, "it does not answer in time", id="answers once"),
        pytest.param(DEAF_TO_SIGTERM, "it does not answer in time", id="can't be terminated"),
        pytest.param(DYING, "its process ended", id="dies at once"),
        pytest.param(DYING_LATER, "its process ended", id="dies later"),
        pytest.param(FAILING, "the disk is full", id="says what is wrong"),
    ],
)
def test_a_worker_that_fails_delays_training_by_no_more_than_the_patience_and_is_reported_once(
    fake_worker: FakeWorker, worker: str, reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    fake_worker(worker)
    started_seconds = time.monotonic()
    with Tracker() as tracker:
        process = tracker._process
        train(tracker)
    assert time.monotonic() - started_seconds < PATIENCE_SECONDS + MARGIN_SECONDS
    assert tracker.waited_seconds < PATIENCE_SECONDS + MARGIN_SECONDS
    assert capfd.readouterr().err.splitlines() == [
        f"MLflow: {reason}. The run goes on; `make ui` sends what was missed."
    ]
    assert process
    assert process.poll() is not None


def test_a_server_that_was_given_up_holds_up_nothing_more_in_the_same_dvc_repro_but_what_tries_again(
    fake_worker: FakeWorker, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    fake_worker(DYING)
    monkeypatch.setattr(client, "dvc_began_at_unix_seconds", lambda: 1.5)
    for _ in range(3):
        with Tracker() as tracker:
            train(tracker)
    assert capfd.readouterr().err.count("MLflow: ") == 1
    with Tracker(try_again=True):
        pass
    assert capfd.readouterr().err.count("MLflow: ") == 1
    monkeypatch.setattr(client, "dvc_began_at_unix_seconds", lambda: 2.5)
    with Tracker():
        pass
    assert capfd.readouterr().err.count("MLflow: ") == 1


def test_what_a_slow_server_holds_up_counts_over_the_whole_dvc_repro(
    fake_worker: FakeWorker, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    fake_worker(
        ANSWERING.replace("ready", READY_BUT_SLOW).replace("print('\"done\"'", "time.sleep(0.1), print('\"done\"'")
    )
    monkeypatch.setattr(client, "dvc_began_at_unix_seconds", lambda: 1.5)
    started_seconds = time.monotonic()
    stages = 0
    while not capfd.readouterr().err.count("MLflow: it does not answer in time"):
        with Tracker() as tracker:
            train(tracker, epochs=1)
        stages += 1
        assert time.monotonic() - started_seconds < 60
    assert stages > 1  # none of them takes as long as the patience
    with Tracker() as tracker:
        assert tracker._process is None
    monkeypatch.setattr(client, "dvc_began_at_unix_seconds", lambda: 2.5)
    with Tracker() as tracker:
        assert tracker._process


@pytest.mark.parametrize("worker", [SILENT, DEAF])
def test_a_worker_that_reads_nothing_blocks_no_message_however_long(fake_worker: FakeWorker, worker: str) -> None:
    fake_worker(worker)
    started_seconds = time.monotonic()
    with Tracker() as tracker:
        for _ in range(300):  # far more than a pipe holds
            tracker.start(RunFacts("small/cpu", {"tag": "long " * 1000}, {}, None), "key", 600)
    assert time.monotonic() - started_seconds < PATIENCE_SECONDS + MARGIN_SECONDS


def test_a_worker_that_does_not_end_is_ended(fake_worker: FakeWorker, capfd: pytest.CaptureFixture[str]) -> None:
    fake_worker(NEVER_ENDING)
    with Tracker() as tracker:
        process = tracker._process
        train(tracker, epochs=1)
    assert process
    assert process.returncode is not None
    assert capfd.readouterr().err == ""


def test_a_worker_that_answers_hears_everything_in_order(fake_worker: FakeWorker, tmp_path: Path) -> None:
    fake_worker(ANSWERING)
    with Tracker() as tracker:
        train(tracker, epochs=3)
    told = heard(tmp_path)
    assert [told[0]["do"], told[-1]["do"]] == ["start", "training_ended"]
    assert epochs_in(told) == [0, 1, 2]


def test_a_slow_server_is_not_given_up_however_long_the_training(
    fake_worker: FakeWorker, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fake_worker(SLOW)
    with Tracker() as tracker:
        tracker.start(RunFacts("small/cpu", {}, {}, None), "key", 600)
        for epoch in range(60):
            time.sleep(0.05)  # the training: all in all much longer than the patience
            tracker.epoch_ended({"epoch": epoch}, {"training_seconds": 0.5})
        tracker.training_ended("small", "cpu", Path("results"), [])
    assert capfd.readouterr().err == ""
    assert epochs_in(heard(tmp_path)) == list(range(60))


def test_epochs_that_follow_quickly_are_told_together(
    fake_worker: FakeWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_worker(ANSWERING)
    monkeypatch.setattr(client, "_FLUSH_SECONDS", 600.0)
    with Tracker() as tracker:
        train(tracker, epochs=100)
    assert [message["do"] for message in heard(tmp_path)] == ["start", "epochs", "training_ended"]


def stop_when_ready(error: BaseException) -> None:
    with Tracker() as tracker:
        tracker.wait_until_ready()
        raise error


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RuntimeError("the loss is no longer finite"), "FAILED"),
        (KeyboardInterrupt(), "KILLED"),
        (TerminatedError("terminated"), "KILLED"),
    ],
)
def test_a_training_that_stops_is_told_with_its_reason(
    fake_worker: FakeWorker, tmp_path: Path, error: BaseException, status: str
) -> None:
    fake_worker(ANSWERING)
    with pytest.raises(type(error)):
        stop_when_ready(error)
    (message,) = heard(tmp_path)
    assert message == {"do": "stopped", "status": status, "reason": str(error) or "KeyboardInterrupt"}


def interrupted(error: BaseException, *, ready: bool) -> subprocess.Popen[str]:
    """The worker of a training that was stopped when it had just told of its start."""
    with suppress(type(error)), Tracker() as tracker:
        process = tracker._process
        assert process
        if ready:
            tracker.wait_until_ready()
        tracker.start(RunFacts("small/cpu", {}, {}, None), "key", 600)
        raise error
    return process


@pytest.mark.parametrize("error", [KeyboardInterrupt(), TerminatedError("terminated")])
def test_an_interrupt_waits_for_no_worker_that_is_not_ready_and_tells_it_nothing(
    fake_worker: FakeWorker, tmp_path: Path, error: BaseException
) -> None:
    fake_worker(UNTIL_GO + ANSWERING)
    process = interrupted(error, ready=False)
    assert process.poll() is None  # still starting
    (tmp_path / "go").touch()
    assert process.wait() == 0
    assert not (tmp_path / "heard.jsonl").exists()


def test_an_interrupt_leaves_a_busy_worker_to_do_what_it_has_heard(fake_worker: FakeWorker, tmp_path: Path) -> None:
    fake_worker(ANSWERING.replace("    for", f"{UNTIL_GO}    for"))
    process = interrupted(KeyboardInterrupt(), ready=True)
    assert process.poll() is None
    (tmp_path / "go").touch()
    assert process.wait() == 0
    assert [message["do"] for message in heard(tmp_path)] == ["start", "stopped"]


def test_an_error_of_the_training_passes_a_worker_that_is_gone(fake_worker: FakeWorker) -> None:
    fake_worker(DYING)
    with pytest.raises(ZeroDivisionError), Tracker():
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("uri", "far"),
    [
        (None, False),
        ("", False),
        ("sqlite:////srv/mlflow.db", False),
        ("/srv/mlruns", False),
        ("mlruns", False),
        ("databricks", True),
        (SERVER, True),
        ("postgresql://db", True),
    ],
)
def test_a_server_is_given_less_patience_than_a_database_on_disk(
    fake_worker: FakeWorker, monkeypatch: pytest.MonkeyPatch, uri: str | None, far: bool
) -> None:
    fake_worker(ANSWERING)
    if uri is None:
        monkeypatch.delenv("MLFLOW_TRACKING_URI")
    else:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with Tracker() as tracker:
        expected_seconds = PATIENCE_SECONDS if far else client._LOCAL_PATIENCE_SECONDS
        assert tracker._patience_seconds == expected_seconds


def test_without_mlflow_nothing_is_started_and_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(client, "find_spec", lambda _name: None)
    with Tracker() as tracker:
        tracker.wait_until_ready()
        tracker.epoch_ended({"epoch": 1}, {})
    assert capfd.readouterr().err == "MLflow is not installed here: this run is not tracked\n"
