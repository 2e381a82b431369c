"""One writer of a result, and one timed training at a time. A lock ends with its process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from training_stage import read_until

from photofinish.errors import UserError
from photofinish.stage.locks import exclusive, exclusive_machine, machine_lock

_HOLD = """
import os, sys, time
from pathlib import Path
from photofinish.stage.locks import exclusive, exclusive_machine

names = sys.argv[1:]
with exclusive(Path(), *names) if names else exclusive_machine("training small"):
    if os.fork() == 0:
        time.sleep(60)  # a child must not keep the lock
        os._exit(0)
    print("held", flush=True)
    sys.stdin.readline()
"""
Hold = Callable[..., subprocess.Popen[str]]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def hold(folder: Path, request: pytest.FixtureRequest) -> Hold:
    """Start a process that holds these names, or the machine, until it reads a line.

    Each has a TMPDIR of its own, as jobs of a cluster have.
    """

    def start(*names: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", _HOLD, *names],
            cwd=folder,
            env=os.environ | {"TMPDIR": tempfile.mkdtemp(dir=folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

        def end() -> None:
            with process, suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

        request.addfinalizer(end)
        return process

    return start


@pytest.mark.parametrize("wanted", [("results/a",), ("results/c", "results/b")])
def test_a_second_writer_waits_with_a_message_and_fails(
    folder: Path, hold: Hold, wanted: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    read_until(hold("results/a", "results/b"), "held")
    refused = pytest.raises(UserError, match=wanted[-1])
    with refused, exclusive(folder, *wanted, patience_seconds=0.1):
        pytest.fail("it was let in")
    assert capsys.readouterr().err == f"waiting for the process that is using {wanted[-1]}\n"
    with exclusive(folder, "results/c"):  # the lock of something else
        pass
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("names", [("results/a", "results/b"), ()], ids=["writer", "machine"])
@pytest.mark.parametrize("end", ["done", "killed"])
def test_the_next_process_goes_on_once_the_first_is_done_or_killed(
    hold: Hold, names: tuple[str, ...], end: str
) -> None:
    read_until(first := hold(*names), "held")
    second = hold(*reversed(names))
    assert second.stderr is not None
    waiting = second.stderr.readline()
    assert waiting.startswith("waiting for ")
    if not names:
        assert f"process {first.pid} (training small): only one timed run at a time" in waiting
    if end == "killed":
        first.kill()
    else:
        assert first.stdin is not None
        first.stdin.write("\n")
        first.stdin.flush()
    read_until(second, "held")


def test_the_machines_lock_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setattr("platform.node", lambda: "lab")
    assert machine_lock() == tmp_path / ".local" / "state" / "photofinish" / "lab.lock"


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("what", ["a file", "a folder"])
def test_a_lock_that_cant_be_written_is_named_with_the_variable_that_moves_it(
    what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if what == "a file":  # in the folder's place
        machine_lock().parent.write_text("", encoding="utf-8")
    else:
        machine_lock().mkdir(parents=True)
    with exclusive_machine("trains") as waited_seconds:  # the training goes on
        assert waited_seconds == 0
    note = capsys.readouterr().err
    assert str(machine_lock()) in note
    assert "XDG_STATE_HOME" in note
