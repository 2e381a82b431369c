"""Checkpoints: two are kept, a full disk leaves no partial file, and old ones are removed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from conftest import HeldClock

from photofinish.training.checkpoint import CheckpointStore, prune_checkpoints


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


class Code:
    """Object whose pickle calls a function."""

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, ("executed",)


def test_a_checkpoint_with_a_pickle_is_named_removed_and_not_executed(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(store.folder.parent)
    store.save(4, {"epochs_done": Code()})
    newest, said = store.paths()[0], list[str]()
    assert store.load_latest(said.append) == {"epochs_done": 3}
    assert [str(newest) in line for line in said] == [True]
    assert not newest.exists()
    assert not Path("executed").exists()
