"""Recorded times are those that really passed."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import pytest
from conftest import MakeExperiment
from training_process import Start
from training_stage import TrainingStage

from photofinish.data.packed import PackedSplit
from photofinish.machine.fingerprint import CpuTarget
from photofinish.results.records import Timings, read_record


@pytest.mark.slow
def test_recorded_times_fit_the_wall_clock(
    make_experiment: MakeExperiment, cpu_host: CpuTarget, packed_split: PackedSplit, tmp_path: Path
) -> None:
    stage = TrainingStage.prepare(
        tmp_path, make_experiment(epochs=20), cpu_host, packed_split.folder
    )
    before = time.time()
    with stage.fork(Start(mlflow=True)) as process:
        begun = time.time()
        output, _ = process.communicate()
    ended = time.time()
    assert process.returncode == 0, output
    timings = read_record(stage.out / "timings" / "timings.json", Timings)
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
