"""Checkpoints stay after a training and are removed after a month."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from photofinish.training.checkpoint import CheckpointStore, prune_checkpoints


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
