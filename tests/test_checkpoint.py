"""Checkpoints: the last two are kept, damage is always noticed, and a full disk leaves nothing half-written."""

from __future__ import annotations

import errno
import os
import pickle
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from photofinish.errors import UserError
from photofinish.training.checkpoint import CheckpointStore, on_cpu

FLIPS = 300


def state(epochs_done: int, values: int = 100) -> dict[str, Any]:
    return {"network": {"weight": torch.linspace(0, epochs_done, values)}, "progress": {"epochs_done": epochs_done}}


def epochs_done(loaded: dict[str, Any] | None) -> int | None:
    return None if loaded is None else loaded["progress"]["epochs_done"]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0b100
    path.write_bytes(data)


@contextmanager
def file_size_limit(size_bytes: int) -> Iterator[None]:
    """Files of this process can't grow further than this; the write that tries to fails, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    """With checkpoints of the first three epochs saved, one after the other."""
    store = CheckpointStore(tmp_path / "checkpoints")
    for epoch in (1, 2, 3):
        store.save(epoch, state(epoch))
    return store


@pytest.fixture
def damaged() -> list[Path]:
    """Filled with the files that were reported damaged."""
    return []


def test_the_newest_checkpoint_is_read_back_bit_for_bit(tmp_path: Path, damaged: list[Path]) -> None:
    saved = {
        "odd values": torch.tensor([float("nan"), float("inf"), -0.0, 1e-45]),
        "half": torch.randn(5).to(torch.bfloat16),
        "numbers": {"lr": 0.1 + 0.2, "best": float("inf"), "steps": 2**40, "none": None, "list": [1, 2]},
    }
    CheckpointStore(tmp_path).save(1, saved)
    loaded = CheckpointStore(tmp_path).load_latest(damaged.append)
    assert loaded is not None
    assert loaded["odd values"].numpy().tobytes() == saved["odd values"].numpy().tobytes()
    assert torch.equal(loaded["half"], saved["half"])
    assert loaded["numbers"] == saved["numbers"]
    assert damaged == []


def test_the_last_two_checkpoints_are_kept(store: CheckpointStore, damaged: list[Path]) -> None:
    assert [path.name.partition(".")[0] for path in store.paths()] == ["epoch-000003", "epoch-000002"]
    assert len(names(store.folder)) == 2
    assert epochs_done(store.load_latest(damaged.append)) == 3


def test_the_newest_is_the_one_with_the_most_epochs_not_the_last_in_the_alphabet(
    tmp_path: Path, damaged: list[Path]
) -> None:
    store = CheckpointStore(tmp_path)
    for epoch in (999_999, 1_000_000):
        store.save(epoch, state(epoch))
    assert epochs_done(store.load_latest(damaged.append)) == 1_000_000


def test_a_single_flipped_bit_is_noticed_wherever_it_is(tmp_path: Path, damaged: list[Path]) -> None:
    store = CheckpointStore(tmp_path)
    store.save(1, state(1))
    (path,) = store.paths()
    whole = path.read_bytes()
    bits = sorted({*range(0, len(whole) * 8, len(whole) * 8 // FLIPS), len(whole) * 8 - 1})
    for bit in bits:
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        assert store.load_latest(damaged.append) is None, f"bit {bit}"
    assert damaged == [path] * len(bits)


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(store: CheckpointStore, damaged: list[Path]) -> None:
    newest, before = store.paths()
    damage(newest)
    assert epochs_done(store.load_latest(damaged.append)) == 2
    assert damaged == [newest]
    assert store.paths() == [before]


def test_after_damage_the_next_checkpoints_are_saved_as_ever(store: CheckpointStore, damaged: list[Path]) -> None:
    damage(store.paths()[0])
    store.load_latest(damaged.append)
    store.save(3, state(3))
    assert epochs_done(store.load_latest(damaged.append)) == 3
    assert len(store.paths()) == 2


def test_if_every_checkpoint_is_damaged_each_is_named_and_training_begins_anew(
    store: CheckpointStore, damaged: list[Path]
) -> None:
    paths = store.paths()
    for path in paths:
        damage(path)
    assert store.load_latest(damaged.append) is None
    assert damaged == paths


@pytest.mark.parametrize("kept", [0, 1, 500, -1], ids=["empty", "one byte", "a part", "all but a byte"])
def test_a_checkpoint_cut_short_is_noticed(store: CheckpointStore, damaged: list[Path], kept: int) -> None:
    newest = store.paths()[0]
    newest.write_bytes(newest.read_bytes()[:kept])
    assert epochs_done(store.load_latest(damaged.append)) == 2
    assert damaged == [newest]


def test_without_checkpoints_there_is_nothing_to_go_on_from(tmp_path: Path, damaged: list[Path]) -> None:
    assert CheckpointStore(tmp_path / "never made").load_latest(damaged.append) is None
    assert damaged == []


def test_what_a_killed_process_left_half_written_is_ignored(store: CheckpointStore, damaged: list[Path]) -> None:
    (store.folder / f".epoch-000004.{'0' * 64}.pt.abc123").write_bytes(b"half of it")
    (store.folder / "epoch-000005.pt").write_bytes(b"not named as ours are")
    assert epochs_done(store.load_latest(damaged.append)) == 3
    assert damaged == []


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_checkpoint_that_cannot_be_written_is_named_and_leaves_everything_as_it_was(
    store: CheckpointStore, damaged: list[Path], monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def full(*_arguments: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = names(store.folder)
    with monkeypatch.context() as patched:
        patched.setattr(os, call, full)
        with pytest.raises(UserError, match=r"checkpoint .*epoch-000004\..*\.pt can't be written: No space left"):
            store.save(4, state(4))
    assert names(store.folder) == before
    assert epochs_done(store.load_latest(damaged.append)) == 3


def test_a_disk_that_fills_up_in_the_middle_of_a_checkpoint_leaves_everything_as_it_was(
    store: CheckpointStore, damaged: list[Path]
) -> None:
    before = names(store.folder)
    with (
        file_size_limit(200_000),
        pytest.raises(UserError, match=r"epoch-000004\..*\.pt can't be written: File too large"),
    ):
        store.save(4, state(4, values=1_000_000))
    assert names(store.folder) == before
    assert epochs_done(store.load_latest(damaged.append)) == 3


def test_what_is_saved_holds_no_memory_of_a_device() -> None:
    class OnADevice(torch.Tensor):
        def cpu(self) -> str:  # type: ignore[override]
            return "on the CPU"

    tensor = torch.ones(1).as_subclass(OnADevice)
    assert on_cpu({"a": tensor, "b": [tensor, {"c": tensor}], "d": 1}) == {
        "a": "on the CPU",
        "b": ["on the CPU", {"c": "on the CPU"}],
        "d": 1,
    }


def test_a_checkpoint_is_due_so_many_seconds_after_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([100.0, 100.5, 101.0, 105.0, 105.0, 105.5, 106.0])  # at the start, three questions, a save, two
    monkeypatch.setattr("time.monotonic", lambda: next(seconds))
    store = CheckpointStore(tmp_path)
    assert [store.is_due() for _ in range(3)] == [False, True, True]
    store.save(1, state(1))
    assert [store.is_due() for _ in range(2)] == [False, True]


def test_a_checkpoint_runs_no_code_when_it_is_read(tmp_path: Path, damaged: list[Path]) -> None:
    class Pickled:
        def __reduce__(self) -> tuple[Any, ...]:
            return (tmp_path / "ran").touch, ()

    store = CheckpointStore(tmp_path / "checkpoints")
    store.save(1, {"progress": Pickled()})
    with pytest.raises(pickle.UnpicklingError):
        store.load_latest(damaged.append)
    assert not (tmp_path / "ran").exists()


def test_clearing_leaves_nothing(store: CheckpointStore) -> None:
    (store.folder / f".epoch-000004.{'0' * 64}.pt.abc123").write_bytes(b"half of it")
    store.clear()
    assert not store.folder.exists()
    store.clear()
