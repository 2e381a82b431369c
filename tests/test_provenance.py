"""A result's commit, the project's folder, and the start of a process."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import PrepareStage
from training_process import Start

from photofinish.files import project_root
from photofinish.git import git
from photofinish.machine.host import git_commit
from photofinish.results.records import TrainingTimes, read_record
from photofinish.stage.process import note_start_of_stage, seconds_since_stage_start


def test_the_start_of_the_process_is_known_to_a_few_hundredths() -> None:
    code = (
        "from photofinish.stage.process import seconds_since_process_start as s; "
        "import time; before = time.time(); taken = s(); print(before - taken, time.time() - taken)"
    )
    before = time.time()
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as process:
        begun = time.time()
        output, _ = process.communicate()
    earliest, latest = map(float, output.split())  # other programs may run between two readings
    assert before - 0.05 < latest
    assert earliest < begun + 0.05


def test_setting_the_clock_does_not_change_a_jobs_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setattr("os.environ", os.environ.copy())
    note_start_of_stage(0.0)
    before_seconds = seconds_since_stage_start()
    monkeypatch.setattr("time.time", lambda: 0.0)
    assert seconds_since_stage_start() >= before_seconds


def test_the_commit_is_marked_if_a_file_but_dvcs_lock_file_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in ("params.yaml", "dvc.lock"):
        Path(file).write_text("one: 1", encoding="utf-8")
    author = ("user.name=test", "user.email=test@example.com")
    identity = tuple(part for value in author for part in ("-c", value))
    for command in (("init", "--quiet"), ("add", "."), (*identity, "commit", "--quiet", "-m", "1")):
        git(tmp_path, *command)
    head = git(tmp_path, "rev-parse", "HEAD")
    assert git_commit() == head
    Path("dvc.lock").write_text("one: 2", encoding="utf-8")
    assert git_commit() == head
    Path("params.yaml").write_text("one: 2", encoding="utf-8")
    assert git_commit() == f"{head}-dirty"
    Path("photofinish").mkdir()
    monkeypatch.chdir("photofinish")  # with the user's code around it
    assert git_commit() == f"{head}-dirty"
    monkeypatch.chdir(tmp_path)
    shutil.rmtree(".git")
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


@pytest.mark.slow
def test_recorded_times_fit_the_wall_clock(prepare_stage: PrepareStage) -> None:
    stage = prepare_stage(epochs=20)
    before = time.time()
    with stage.fork(Start(mlflow=True)) as process:
        begun = time.time()
        output, _ = process.communicate()
    ended = time.time()
    assert process.returncode == 0, output
    timings = read_record(stage.out / "timings" / "timings.json", TrainingTimes)
    epochs_seconds = sum(
        epoch.training_seconds + epoch.validation_seconds for epoch in timings.epochs
    )
    started = timings.started_at_unix_seconds
    assert before - 0.05 < started < begun + 0.05
    assert timings.data_seconds < timings.startup_seconds
    assert timings.startup_seconds + epochs_seconds < timings.total_seconds
    assert timings.tracking_seconds > 0
    assert (
        started + timings.startup_seconds + epochs_seconds + timings.warm_up_seconds
        < timings.epochs[-1].ended_at_unix_seconds + 0.05
    )
    whole_seconds = timings.total_seconds + timings.warm_up_seconds + timings.tracking_seconds
    assert started + whole_seconds < ended + 0.05
    median_seconds = statistics.median(epoch.training_seconds for epoch in timings.epochs)
    assert timings.images_per_second * median_seconds == pytest.approx(timings.training_image_count)
    assert timings.resumed_at_epochs == ()
    assert (timings.peak_host_memory_bytes or 0) > 100e6  # torch alone takes as much
