"""Checkpoints: two are kept, damage is always noticed, and a full disk leaves no partial file."""

from __future__ import annotations

import errno
import os
import pickle
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from photofinish.errors import UserError
from photofinish.files import sha256_of_bytes
from photofinish.training.checkpoint import CheckpointStore, EpochWeights, prune_checkpoints

FLIPS = 300


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


def flip_a_bit(data: bytes, bit: int) -> bytes:
    flipped = bytearray(data)
    flipped[bit // 8] ^= 1 << bit % 8
    return bytes(flipped)


@contextmanager
def no_space_left(call: str) -> Iterator[None]:
    """Let this system call fail for lack of space."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            os, call, Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        )
        yield


@contextmanager
def file_size_limit(size_bytes: int) -> Iterator[None]:
    """Limit the size of this process's files: a write beyond it fails, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    """Return a store in which checkpoints of three epochs were saved."""
    store = CheckpointStore(tmp_path / "checkpoints")
    for epoch in (1, 2, 3):
        store.save(epoch, state(epoch))
    return store


def test_the_newest_checkpoint_is_read_back_bit_for_bit(tmp_path: Path) -> None:
    saved = {
        "odd values": torch.tensor([float("nan"), float("inf"), -0.0, 1e-45]),
        "half": torch.randn(5).to(torch.bfloat16),
        "numbers": {
            "lr": 0.1 + 0.2,
            "best": float("inf"),
            "steps": 2**40,
            "none": None,
            "list": [1, 2],
        },
    }
    CheckpointStore(tmp_path).save(1, saved)
    loaded = CheckpointStore(tmp_path).load_latest(pytest.fail)
    assert loaded is not None
    assert loaded["odd values"].numpy().tobytes() == saved["odd values"].numpy().tobytes()
    assert torch.equal(loaded["half"], saved["half"])
    assert loaded["numbers"] == saved["numbers"]


def test_the_last_two_checkpoints_are_kept(store: CheckpointStore) -> None:
    assert [path.name.partition(".")[0] for path in store.paths()] == [
        "epoch-000003",
        "epoch-000002",
    ]
    assert len(names(store.folder)) == 2
    assert read_back(store) == (3, [])


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: flip_a_bit(data, len(data) * 4),
        lambda _data: b"",
        lambda data: data[:1],
        lambda data: data[:500],
        lambda data: data[:-1],
    ],
    ids=["a flipped bit", "cut to nothing", "cut to one byte", "cut to a part", "cut by a byte"],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(
    store: CheckpointStore, damage: Callable[[bytes], bytes]
) -> None:
    newest, before = store.paths()
    newest.write_bytes(damage(newest.read_bytes()))
    assert read_back(store) == (2, [newest])
    assert store.paths() == [before]
    store.save(3, state(3))  # as ever
    assert read_back(store) == (3, [])
    assert len(store.paths()) == 2


def test_what_a_killed_process_left_half_written_is_ignored(store: CheckpointStore) -> None:
    (store.folder / f".epoch-000004.{'0' * 64}.pt.abc123").write_bytes(b"half of it")
    (store.folder / "epoch-000005.pt").write_bytes(b"not named as ours are")
    assert read_back(store) == (3, [])


@pytest.mark.parametrize(
    ("full", "why"),
    [
        (lambda: no_space_left("fsync"), "No space left"),
        (lambda: no_space_left("replace"), "No space left"),
        (lambda: file_size_limit(200_000), "File too large"),
    ],
    ids=["when it is flushed", "when it gets its name", "in the middle of it"],
)
def test_a_checkpoint_that_cannot_be_written_is_named_and_leaves_everything_as_it_was(
    store: CheckpointStore, full: Callable[[], AbstractContextManager[None]], why: str
) -> None:
    before = names(store.folder)
    with full(), pytest.raises(UserError, match=rf"epoch-000004\..*\.pt can't be written: {why}"):
        store.save(4, state(4, values=1_000_000))
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


def test_a_checkpoint_runs_no_code_when_it_is_read(tmp_path: Path) -> None:
    class Pickled:
        def __reduce__(self) -> tuple[Any, ...]:
            return (tmp_path / "ran").touch, ()

    store = CheckpointStore(tmp_path / "checkpoints")
    store.save(1, {"progress": Pickled()})
    with pytest.raises(pickle.UnpicklingError):
        store.load_latest(pytest.fail)
    assert not (tmp_path / "ran").exists()


# -- weights of each epoch ----------

WEIGHTS = [f"weights of epoch {epoch}".encode() for epoch in (1, 2, 3)]


@pytest.fixture
def kept(tmp_path: Path) -> EpochWeights:
    """Weights of three epochs."""
    kept = EpochWeights(tmp_path / "kept")
    for weights in WEIGHTS:
        kept.save(weights)
    return kept


def test_every_epoch_has_a_file_and_its_sha256_in_order(kept: EpochWeights, tmp_path: Path) -> None:
    kept.copy_to(tmp_path / "out")
    assert [path.name for path in sorted((tmp_path / "out").iterdir())] == [
        "epoch-0001.safetensors",
        "epoch-0002.safetensors",
        "epoch-0003.safetensors",
    ]
    assert [path.read_bytes() for path in sorted((tmp_path / "out").iterdir())] == WEIGHTS
    assert kept.sha256 == [sha256_of_bytes(weights) for weights in WEIGHTS]


@pytest.mark.parametrize("epochs_done", [0, 1, 2, 3])
def test_a_resumed_run_goes_on_after_its_checkpoint_and_replaces_what_came_later(
    kept: EpochWeights, tmp_path: Path, epochs_done: int
) -> None:
    resumed = EpochWeights(tmp_path / "kept")
    assert resumed.resume(kept.sha256[:epochs_done]) is None
    for weights in WEIGHTS[epochs_done:]:
        resumed.save(weights)
    resumed.copy_to(tmp_path / "out")
    assert [path.read_bytes() for path in sorted((tmp_path / "out").iterdir())] == WEIGHTS
    assert resumed.sha256 == kept.sha256


@pytest.mark.parametrize(
    "damage", [lambda path: path.write_bytes(b"weights of epoch 3"), Path.unlink]
)
def test_a_damaged_or_missing_file_is_named_when_a_run_would_go_on_with_it(
    kept: EpochWeights, tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    damage(tmp_path / "kept" / "epoch-0002.safetensors")
    resumed = EpochWeights(tmp_path / "kept")
    assert resumed.resume(kept.sha256) == tmp_path / "kept" / "epoch-0002.safetensors"
    assert resumed.sha256 == []
    assert resumed.resume(kept.sha256[:1]) is None


def test_damaged_weights_are_not_copied(kept: EpochWeights, tmp_path: Path) -> None:
    (tmp_path / "kept" / "epoch-0003.safetensors").write_bytes(b"weights of epoch 2")
    with pytest.raises(UserError, match=r"epoch-0003\.safetensors was damaged .* `dvc repro`"):
        kept.copy_to(tmp_path / "out")


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


def test_without_checkpoints_there_is_nothing_to_remove(tmp_path: Path) -> None:
    prune_checkpoints(tmp_path / "none")
    assert not (tmp_path / "none").exists()
