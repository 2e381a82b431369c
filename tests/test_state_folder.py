"""Locks and checkpoints have another folder if theirs can't be written: no training needs it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from conftest import PrepareStage


@pytest.mark.slow
@pytest.mark.parametrize("users_is_writable", [True, False])
def test_a_training_goes_on_beside_a_file_in_the_state_folders_place_and_names_the_variable(
    *, users_is_writable: bool, prepare_stage: PrepareStage, tmp_path: Path, empty_database: Path
) -> None:
    stage, users, temporary = prepare_stage(epochs=2), tmp_path / "users", tmp_path / "temporary"
    places = [stage.folder / ".photofinish", *([] if users_is_writable else [users])]
    for place in places:
        place.write_text("mine", encoding="utf-8")
    temporary.mkdir()
    shutil.copy(empty_database, stage.folder)
    process = stage.start(XDG_STATE_HOME=str(users), TMPDIR=str(temporary))
    output, _ = process.communicate()
    assert process.returncode == 0, output
    assert {"record.json", "weights.safetensors"} <= stage.learned().keys()
    (note,) = [line for line in output.splitlines() if f"{places[0]} can't be written" in line]
    assert "XDG_STATE_HOME" in note
    assert all(place.read_text(encoding="utf-8") == "mine" for place in places)
    if users_is_writable:
        (checkpoint,) = users.rglob("epoch-000002.*.pt")
        assert str(checkpoint.parents[2]) in note
    assert not list(temporary.rglob("*.pt"))
