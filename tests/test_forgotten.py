"""Checkpoints and locks of runs that nobody resumes are removed after a month, and nothing else is."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from training_stage import read_until

from photofinish.locks import retired, sole_writer
from photofinish.training.checkpoint import CheckpointStore, remove_forgotten

DAY_SECONDS = 24 * 3600

_HOLD_UNTIL_TOLD = """
import sys
from pathlib import Path
from photofinish.locks import sole_writer

with sole_writer(Path(sys.argv[1]), sys.argv[2]):
    print("held", flush=True)
    sys.stdin.readline()
print("released", flush=True)
"""


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A run that was killed: its checkpoint, the weights of its epochs, its locks."""
    CheckpointStore(tmp_path / "checkpoints" / "key").save(1, {})
    (tmp_path / "checkpoints" / "key" / "epochs").mkdir()
    (tmp_path / "checkpoints" / "key" / "epochs" / "epoch-0001.safetensors").write_bytes(b"weights")
    with sole_writer(tmp_path / "locks", "key", "/results/small/cpu"):
        pass
    for name in ("mirroring.lock", "mlflow.lock"):
        (tmp_path / "locks" / name).touch()
    return tmp_path


def age(folder: Path, *, days: float) -> None:
    then = time.time() - days * DAY_SECONDS
    for path in [folder, *folder.rglob("*")]:
        os.utime(path, (then, then))


def clean(state: Path) -> set[str]:
    """Remove what is forgotten; the names of the files that are left."""
    remove_forgotten([state / "checkpoints", state / "removed"], state / "locks")
    return {path.name for path in state.rglob("*") if path.is_file()}


def hold(state: Path, name: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _HOLD_UNTIL_TOLD, str(state / "locks"), name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_after_a_month_checkpoints_weights_and_locks_go_and_mlflows_locks_stay(state: Path) -> None:
    age(state, days=31)
    assert clean(state) == {"mirroring.lock", "mlflow.lock"}
    assert list((state / "checkpoints").iterdir()) == []


def test_before_that_everything_stays(state: Path) -> None:
    before = {path.name for path in state.rglob("*") if path.is_file()}
    age(state, days=29)
    assert clean(state) == before


def test_a_run_that_went_on_lately_keeps_its_checkpoints(state: Path) -> None:
    age(state, days=31)
    CheckpointStore(state / "checkpoints" / "key").save(2, {})
    assert len(clean(state)) == 2 + 3


def test_what_another_process_holds_stays(state: Path) -> None:
    with hold(state, "key") as process:
        read_until(process, "held")
        age(state, days=31)
        left = clean(state)
        process.communicate("\n")
    assert {"epoch-0001.safetensors", "mirroring.lock", "mlflow.lock"} < left
    assert len(left) == 2 + 2 + 2  # checkpoint and weights; the lock that is held; MLflow's


def test_what_this_process_holds_itself_stays(state: Path) -> None:
    with sole_writer(state / "locks", "key"):
        age(state, days=31)
        assert "epoch-0001.safetensors" in clean(state)
    assert "epoch-0001.safetensors" not in clean(state)


def test_without_a_state_folder_there_is_nothing_to_remove(tmp_path: Path) -> None:
    remove_forgotten([tmp_path / "checkpoints"], tmp_path / "locks")
    assert list(tmp_path.iterdir()) == []


def test_two_processes_never_hold_a_lock_whose_file_was_removed_meanwhile(state: Path) -> None:
    with retired(state / "locks", "key") as is_free:
        assert is_free
        waiting = hold(state, "key")
        read_until(waiting, "waiting: process")
    read_until(waiting, "held")
    with hold(state, "key") as second:
        read_until(second, f"waiting: process {waiting.pid} is writing key")
        waiting.communicate("\n")
        read_until(second, "held")
        second.communicate("\n")
