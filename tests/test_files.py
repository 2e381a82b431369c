"""Files are written atomically, and JSON is canonical."""

from __future__ import annotations

import os
import re
from pathlib import Path
from unittest.mock import Mock

import pytest

from photofinish import files
from photofinish.errors import UserError

FULL = OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("step", "error"),
    [("fsync", FULL), ("replace", FULL), ("fsync", KeyboardInterrupt("made up"))],
    ids=str,
)
def test_a_failed_or_interrupted_write_leaves_the_old_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: BaseException
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, step, Mock(side_effect=error))
    with pytest.raises(type(error), match=re.escape(str(error))):
        files.write_bytes_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_equal_values_give_identical_json_below_any_folder(tmp_path: Path) -> None:
    path = tmp_path / "a" / "a.json"
    files.write_json_atomically(path, {"b": 1, "a": "größe"})
    files.write_json_atomically(tmp_path / "b.json", {"a": "größe", "b": 1})
    text = path.read_text(encoding="utf-8")
    assert path.stat().st_mode & 0o777 == 0o644
    assert text == '{\n  "a": "größe",\n  "b": 1\n}\n'
    assert (tmp_path / "b.json").read_text(encoding="utf-8") == text


def test_a_folder_that_cannot_be_written_is_reported_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert list(files.state_folder().iterdir()) == []
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(UserError, match=r"\.photofinish can't be written: make the project's"):
        files.state_folder()
