"""A result's commit, the project's folder, and the start of a process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from photofinish.files import project_root
from photofinish.machine.host import git_commit
from photofinish.stage.rank import note_start_of_stage, seconds_since_stage_start


def test_the_start_of_the_process_is_known_to_a_few_hundredths() -> None:
    code = (
        "from photofinish.stage.rank import seconds_since_process_start as s; "
        "import time; print(time.time() - s())"
    )
    before = time.time()
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as process:
        begun = time.time()
        output, _ = process.communicate()
    assert before - 0.05 < float(output) < begun + 0.05


def test_setting_the_clock_does_not_change_a_jobs_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setattr("os.environ", os.environ.copy())
    note_start_of_stage(0.0)
    before_seconds = seconds_since_stage_start()
    monkeypatch.setattr("time.time", lambda: 0.0)
    assert seconds_since_stage_start() >= before_seconds


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.com")
    ran = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return ran.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "params.yaml").write_text("one: 1", encoding="utf-8")
    (tmp_path / "dvc.lock").write_text("one: 1", encoding="utf-8")
    for command in (("init", "--quiet"), ("add", "."), ("commit", "--quiet", "-m", "start")):
        git(tmp_path, *command)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_commit_is_marked_if_a_file_but_dvcs_lock_file_changed(repository: Path) -> None:
    head = git(repository, "rev-parse", "HEAD")
    assert git_commit() == head
    (repository / "dvc.lock").write_text("one: 2", encoding="utf-8")
    assert git_commit() == head
    (repository / "params.yaml").write_text("one: 2", encoding="utf-8")
    assert git_commit() == f"{head}-dirty"


def test_there_is_no_commit_outside_a_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_commit() is None


def test_the_projects_folder_is_dvcs_or_the_working_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    assert project_root() == tmp_path.resolve()
    copied = tmp_path / "copy" / "photofinish"  # of `dvc exp run --temp`, in a folder of its own
    copied.mkdir(parents=True)
    (copied.parent / ".dvc").mkdir()
    monkeypatch.chdir(copied)
    assert project_root() == tmp_path.resolve() / "photofinish"
    monkeypatch.delenv("DVC_ROOT")
    assert project_root() == Path.cwd()
