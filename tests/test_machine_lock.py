"""Timed trainings on one machine never overlap, whatever becomes of the one that holds it."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from photofinish.locks import NAME, machine_to_itself

_HOLD = """
import sys, time
from photofinish.locks import machine_to_itself
with machine_to_itself("which trains small on the cpu") as waited_seconds:
    print(f"held {waited_seconds:.2f}", flush=True)
    if sys.argv[1] == "fork":
        import os
        if os.fork() == 0:
            time.sleep(30)
    time.sleep(float(sys.argv[2]))
print("let go", flush=True)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def hold(seconds: float, how: str = "alone") -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, how, str(seconds)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("held")
    return process


def test_the_machine_is_free_where_nothing_trains() -> None:
    for _ in range(2):
        with machine_to_itself("which trains small on the cpu") as waited_seconds:
            assert waited_seconds < 0.5


def test_another_training_is_waited_for_and_named(capfd: pytest.CaptureFixture[str]) -> None:
    with hold(0.7) as other, machine_to_itself("mine") as waited_seconds:
        assert 0.2 < waited_seconds < 30
        assert f"waiting: process {other.pid}, which trains small on the cpu, has this machine to itself" in (
            capfd.readouterr().err
        )


def test_it_is_free_as_soon_as_its_holder_is_killed() -> None:
    with hold(600) as other:
        os.kill(other.pid, signal.SIGKILL)
        with machine_to_itself("mine") as waited_seconds:
            assert waited_seconds < 30


def test_a_process_that_its_holder_forked_does_not_hold_on() -> None:
    with hold(0.2, "fork") as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "let go\n"
        with machine_to_itself("mine") as waited_seconds:
            assert waited_seconds < 30
        os.killpg(other.pid, signal.SIGKILL)


def test_who_waits_can_be_ended(folder: Path) -> None:
    with machine_to_itself("mine"):
        waiting = subprocess.Popen([sys.executable, "-c", _HOLD, "alone", "0"], stderr=subprocess.PIPE, text=True)
        assert waiting.stderr is not None
        assert str(folder / NAME) in waiting.stderr.readline()
        started_seconds = time.monotonic()
        waiting.send_signal(signal.SIGINT)
        waiting.communicate()
        assert time.monotonic() - started_seconds < 30


def test_every_user_of_the_machine_may_use_its_file(folder: Path) -> None:
    before = os.umask(0o077)
    try:
        with machine_to_itself("mine"):
            pass
    finally:
        os.umask(before)
    assert stat.S_IMODE((folder / NAME).stat().st_mode) == 0o666
