"""Where a result comes from, and when its process began."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from photofinish.files import project_root
from photofinish.machine.host import git_commit
from photofinish.processes import note_start_of_stage, seconds_since_stage_start


def test_the_start_of_the_process_is_known_to_a_few_hundredths() -> None:
    code = "from photofinish.processes import seconds_since_process_start as s; import time; print(time.time() - s())"
    before = time.time()
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        begun = time.time()
        output, _ = process.communicate()
    assert before - 0.05 < float(output) < begun + 0.05


def test_a_clock_that_is_set_is_no_part_of_a_jobs_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setattr("os.environ", os.environ.copy())  # which is written to
    note_start_of_stage(0.0)
    before_seconds = seconds_since_stage_start()
    monkeypatch.setattr("time.time", lambda: 0.0)
    assert seconds_since_stage_start() >= before_seconds


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.com")
    ran = subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return ran.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "params.yaml").write_text("one: 1", encoding="utf-8")
    (tmp_path / "dvc.lock").write_text("one: 1", encoding="utf-8")
    for command in (("init", "--quiet"), ("add", "."), ("commit", "--quiet", "-m", "start")):
        git(tmp_path, *command)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_commit_is_the_one_that_is_checked_out(repository: Path) -> None:
    assert git_commit() == git(repository, "rev-parse", "HEAD")


def test_a_changed_file_marks_the_commit(repository: Path) -> None:
    (repository / "params.yaml").write_text("one: 2", encoding="utf-8")
    assert git_commit() == git(repository, "rev-parse", "HEAD") + "-dirty"


def test_a_lock_file_that_dvc_is_writing_marks_nothing(repository: Path) -> None:
    (repository / "dvc.lock").write_text("one: 2", encoding="utf-8")
    assert git_commit() == git(repository, "rev-parse", "HEAD")


def test_outside_of_git_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_commit() is None


def test_the_root_is_dvcs_where_dvc_runs_a_stage_in_a_copy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    assert project_root() == tmp_path.resolve()
    monkeypatch.delenv("DVC_ROOT")
    assert project_root() == Path.cwd()
