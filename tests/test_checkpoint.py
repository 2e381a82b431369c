"""Checkpoints: two are kept, a full disk leaves no partial file, and old ones are removed."""

from __future__ import annotations

import math
import os
import time
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
from conftest import HeldClock, MakeRun
from training_process import train_here

from photofinish.results.records import TrainingTimes, read_record
from photofinish.stage.process import seconds_since_process_start
from photofinish.training.checkpoint import CheckpointStore, State, prune_checkpoints


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    """Return a store in which checkpoints of three epochs were saved."""
    store = CheckpointStore(tmp_path / "checkpoints")
    for epoch in (1, 2, 3):
        store.save(epoch, {"epochs_done": epoch})
    return store


def names(store: CheckpointStore) -> list[str]:
    return sorted(path.name for path in store.folder.iterdir())


def test_the_last_two_checkpoints_are_kept(store: CheckpointStore) -> None:
    kept = [name.partition(".")[0] for name in names(store)]
    assert kept == ["epoch-000002", "epoch-000003"]
    assert store.load_latest() == {"epochs_done": 3}


def test_a_checkpoint_is_due_a_second_after_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, due = HeldClock(), []
    monkeypatch.setattr("time.monotonic", lambda: clock.now_seconds)
    store = CheckpointStore(tmp_path)
    for _ in range(2):
        for seconds in (0.5, 0.5):
            clock.take(seconds)
            due.append(store.is_due())
        store.save(1, {})
    assert due == [False, True, False, True]


def test_checkpoints_take_a_thirtieth_of_the_time_where_writing_one_is_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, saves = HeldClock(), 0
    monkeypatch.setattr("time.monotonic", lambda: clock.now_seconds)
    write = "photofinish.training.checkpoint.write_bytes_atomically"
    monkeypatch.setattr(write, lambda *_: clock.take(0.3))
    store = CheckpointStore(tmp_path)
    for epoch in range(5000):  # 100 s
        clock.take(0.02)
        if store.is_due():
            store.save(epoch, {})
            saves += 1
    assert 0.02 < 0.3 * saves / 100 < 0.05


def test_numbers_of_numpy_such_as_a_schedules_are_loaded_again(store: CheckpointStore) -> None:
    store.save(4, {"schedule": {"last_lr": [np.float64(0.5)]}, "network": OrderedDict()})
    assert store.load_latest() == {"schedule": {"last_lr": [0.5]}, "network": {}}


@pytest.mark.parametrize(("days", "stays"), [(29, True), (31, False)])
def test_checkpoints_are_removed_after_a_month(tmp_path: Path, days: int, stays: bool) -> None:
    run = tmp_path / "key"
    CheckpointStore(run).save(1, {})
    (run / "epochs").mkdir()
    (run / "epochs" / "epoch-0001.safetensors").write_bytes(b"weights")
    then = time.time() - days * 24 * 3600
    for path in [*run.rglob("*"), run]:
        os.utime(path, (then, then))
    prune_checkpoints(tmp_path)
    assert run.exists() is stays


def test_checkpoints_are_in_no_jobs_time_and_have_a_figure_of_their_own(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began_seconds, monotonic = seconds_since_process_start(), time.monotonic
    slow, save = HeldClock(), CheckpointStore.save

    def save_slowly(store: CheckpointStore, epochs_done: int, state: State) -> None:
        save(store, epochs_done, state)
        slow.take(1000.0)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("photofinish.training.checkpoint.CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(CheckpointStore, "save", save_slowly)
    monkeypatch.setattr("time.monotonic", lambda: monotonic() + slow.now_seconds)
    monkeypatch.setattr(
        "photofinish.stage.process.seconds_since_process_start",
        lambda: seconds_since_process_start() + slow.now_seconds,
    )
    train_here(run := make_run(epochs=2))
    timings = read_record(run.out / "timings" / "timings.json", TrainingTimes)
    assert timings.overhead.checkpoint_seconds == pytest.approx(slow.now_seconds, abs=100)
    assert slow.now_seconds >= 1000
    assert max(timings.total_seconds, timings.whole_seconds) < began_seconds + 500
    assert timings.overhead.seconds < 500


class Code:
    """Object whose pickle calls a function."""

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, ("executed",)


@pytest.mark.parametrize("code", [Code(), {"param_groups": [{"norm": math.sqrt}]}], ids=type)
def test_a_checkpoint_with_code_is_named_removed_and_not_executed(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch, code: object
) -> None:
    monkeypatch.chdir(store.folder.parent)
    store.save(4, {"epochs_done": code})
    newest, said = store.paths()[0], list[str]()
    assert store.load_latest(said.append) == {"epochs_done": 3}
    assert [str(newest) in line for line in said] == [True]
    assert not newest.exists()
    assert not Path("executed").exists()
