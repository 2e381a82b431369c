"""One writer at a time: the second waits and says for what, then works or ends; a lock never outlives its process."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import MakeExperiment
from training_stage import TrainingStage, read_until

from photofinish import locks
from photofinish.data.packed import PackedSplit
from photofinish.errors import UserError
from photofinish.locks import sole_writer
from photofinish.machine.fingerprint import CpuHost

_HOLD_UNTIL_TOLD = """
import sys
from pathlib import Path
from photofinish.locks import sole_writer

with sole_writer(Path(sys.argv[1]), *sys.argv[2:]):
    print("held", flush=True)
    sys.stdin.readline()
"""


def start_holder(folder: Path, *names: str) -> subprocess.Popen[str]:
    """Another process, which holds these until it reads a line."""
    return subprocess.Popen(
        [sys.executable, "-c", _HOLD_UNTIL_TOLD, str(folder), *names],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """One of `results/a` and `results/b`."""
    with start_holder(tmp_path, "results/a", "results/b") as process:
        read_until(process, "held")
        yield process


@pytest.mark.usefixtures("holder")
@pytest.mark.parametrize("wanted", [("results/a",), ("results/c", "results/b")])
def test_the_second_writer_waits_with_a_message_and_ends(
    tmp_path: Path,
    wanted: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(locks, "_PATIENCE_SECONDS", 0.1)
    message = rf"another process is writing {wanted[-1]} still: wait .* or end it"
    with pytest.raises(UserError, match=message), sole_writer(tmp_path, *wanted):
        pytest.fail("it was let in")
    assert capsys.readouterr().err == f"waiting: another process is writing {wanted[-1]}\n"


def test_the_second_writer_works_as_soon_as_the_first_is_done(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    with start_holder(tmp_path, "results/b", "results/a") as second:
        assert second.stdout is not None
        assert second.stdout.readline() == "waiting: another process is writing results/a\n"
        holder.communicate("done\n")
        read_until(second, "held")
        second.communicate("done\n")
    assert second.returncode == 0


def test_a_writer_of_something_else_need_not_wait(
    tmp_path: Path, holder: subprocess.Popen[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with sole_writer(tmp_path, "results/c"):
        assert holder.poll() is None
    assert capsys.readouterr().err == ""


def test_a_killed_writer_leaves_no_lock_behind(
    tmp_path: Path, holder: subprocess.Popen[str], capsys: pytest.CaptureFixture[str]
) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with sole_writer(tmp_path, "results/a", "results/b"):
        assert len(list(tmp_path.glob("*.lock"))) == 2
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_two_trainings_into_one_folder_take_turns_and_learn_the_same(
    tmp_path: Path, packed_split: PackedSplit, cpu_host: CpuHost, make_experiment: MakeExperiment
) -> None:
    experiment = make_experiment(epochs=200)
    stage = TrainingStage.prepare(tmp_path, experiment, cpu_host, packed_split.folder)
    with stage.fork() as first:
        read_until(first, "epoch 1/")
        first.send_signal(signal.SIGSTOP)  # so that it's sure to be at work when the second comes
        with stage.fork() as second:
            waiting = read_until(second, "waiting")
            first.send_signal(signal.SIGCONT)
            first.communicate()
            assert first.returncode == 0
            learned = stage.learned()
            output, _ = second.communicate()
    assert second.returncode == 0, output
    assert re.search(r"waiting: another process is writing \S+", waiting)
    assert "Traceback" not in output
    assert stage.learned() == learned
