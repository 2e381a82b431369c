"""Checkpoints of runs that nobody resumes are removed after a month, and nothing else is."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from conftest import ROOT

from photofinish.params.reader import read_params
from photofinish.plan import set_aside_results
from photofinish.training.checkpoint import CheckpointStore, remove_forgotten

DAY_SECONDS = 24 * 3600


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A run that was killed: its checkpoint and the weights of its epochs."""
    CheckpointStore(tmp_path / "checkpoints" / "key").save(1, {})
    (tmp_path / "checkpoints" / "key" / "epochs").mkdir()
    (tmp_path / "checkpoints" / "key" / "epochs" / "epoch-0001.safetensors").write_bytes(b"weights")
    return tmp_path


def age(folder: Path, *, days: float) -> None:
    then = time.time() - days * DAY_SECONDS
    for path in [folder, *folder.rglob("*")]:
        os.utime(path, (then, then))


def clean(state: Path) -> set[str]:
    """Remove what is forgotten; the names of the files that are left."""
    remove_forgotten([state / "checkpoints", state / "removed"])
    return {path.name for path in state.rglob("*") if path.is_file()}


def test_after_a_month_checkpoints_and_weights_go(state: Path) -> None:
    age(state, days=31)
    assert clean(state) == set()
    assert list((state / "checkpoints").iterdir()) == []


def test_the_month_of_a_result_begins_when_its_experiment_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, params_file: Path
) -> None:
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    params_file.write_text((ROOT / "params.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "results" / "old" / "cpu").mkdir(parents=True)
    age(tmp_path / "results", days=31)
    set_aside_results(read_params(params_file), tmp_path / "results")
    state = tmp_path / ".photofinish"
    clean(state)
    assert (state / "removed" / "old" / "cpu").is_dir()
    age(state, days=31)
    clean(state)
    assert list((state / "removed").iterdir()) == []


def test_before_that_everything_stays(state: Path) -> None:
    before = {path.name for path in state.rglob("*") if path.is_file()}
    age(state, days=29)
    assert clean(state) == before


def test_a_run_that_went_on_lately_keeps_its_checkpoints(state: Path) -> None:
    age(state, days=31)
    CheckpointStore(state / "checkpoints" / "key").save(2, {})
    assert len(clean(state)) == 3


def test_without_a_state_folder_there_is_nothing_to_remove(tmp_path: Path) -> None:
    remove_forgotten([tmp_path / "checkpoints"])
    assert list(tmp_path.iterdir()) == []
