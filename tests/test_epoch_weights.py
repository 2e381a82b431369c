"""The weights of every epoch are kept whole beside the checkpoints, and go on being kept after a kill."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from photofinish.errors import UserError
from photofinish.files import sha256_of_bytes
from photofinish.training.checkpoint import EpochWeights

WEIGHTS = [f"weights of epoch {epoch}".encode() for epoch in (1, 2, 3)]


@pytest.fixture
def kept(tmp_path: Path) -> EpochWeights:
    """Those of three epochs."""
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


@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(b"weights of epoch 3"), Path.unlink])
def test_a_damaged_or_missing_file_is_named_when_a_run_would_go_on_with_it(
    kept: EpochWeights, tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    damage(tmp_path / "kept" / "epoch-0002.safetensors")
    resumed = EpochWeights(tmp_path / "kept")
    assert resumed.resume(kept.sha256) == tmp_path / "kept" / "epoch-0002.safetensors"
    assert resumed.sha256 == []
    assert resumed.resume(kept.sha256[:1]) is None


def test_damaged_weights_are_not_handed_on(kept: EpochWeights, tmp_path: Path) -> None:
    (tmp_path / "kept" / "epoch-0003.safetensors").write_bytes(b"weights of epoch 2")
    with pytest.raises(UserError, match=r"epoch-0003\.safetensors was damaged .* `dvc repro`"):
        kept.copy_to(tmp_path / "out")
