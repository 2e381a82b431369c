"""Checkpoints: two are kept, damage is always noticed, and a full disk leaves no partial file."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from photofinish.training.checkpoint import CheckpointStore, prune_checkpoints


def state(epochs_done: int, values: int = 100) -> dict[str, Any]:
    return {
        "network": {"weight": torch.linspace(0, epochs_done, values)},
        "progress": {"epochs_done": epochs_done},
    }


def read_back(store: CheckpointStore) -> tuple[int | None, list[Path]]:
    """Return the epochs done in the loaded checkpoint, and the files reported as damaged."""
    reported: list[str] = []
    before = store.paths()
    loaded = store.load_latest(reported.append)
    damaged = [path for path in before if any(str(path) in line for line in reported)]
    return None if loaded is None else loaded["progress"]["epochs_done"], damaged


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    """Return a store in which checkpoints of three epochs were saved."""
    store = CheckpointStore(tmp_path / "checkpoints")
    for epoch in (1, 2, 3):
        store.save(epoch, state(epoch))
    return store


def test_the_last_two_checkpoints_are_kept(store: CheckpointStore) -> None:
    assert [path.name.partition(".")[0] for path in store.paths()] == [
        "epoch-000003",
        "epoch-000002",
    ]
    assert len(names(store.folder)) == 2
    assert read_back(store) == (3, [])


def test_what_a_killed_process_left_half_written_is_ignored(store: CheckpointStore) -> None:
    (store.folder / f".epoch-000004.{'0' * 64}.pt.abc123").write_bytes(b"half of it")
    (store.folder / "epoch-000005.pt").write_bytes(b"not named as ours are")
    assert read_back(store) == (3, [])


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_checkpoint_that_does_not_fit_on_the_disk_leaves_everything_as_it_was(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    before = names(store.folder)
    is_full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(os, call, Mock(side_effect=is_full))
    with pytest.raises(OSError, match="No space left"):
        store.save(4, state(4))
    monkeypatch.undo()
    assert names(store.folder) == before
    assert read_back(store) == (3, [])


def test_a_checkpoint_is_due_so_many_seconds_after_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter(
        [100.0, 100.5, 101.0, 105.0, 105.0, 105.5, 106.0]
    )  # at the start, three questions, a save, two
    monkeypatch.setattr("time.monotonic", lambda: next(seconds))
    store = CheckpointStore(tmp_path)
    assert [store.is_due() for _ in range(3)] == [False, True, True]
    store.save(1, state(1))
    assert [store.is_due() for _ in range(2)] == [False, True]


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
