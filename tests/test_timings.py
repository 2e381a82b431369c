"""The times on record are those that really passed."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import pytest
from conftest import MakeExperiment, MakeResult
from pydantic import ValidationError
from training_stage import STAGE, TrainingStage

from photofinish.comparing.pairs import Trained
from photofinish.data.packed import PackedSplit
from photofinish.machine.fingerprint import CpuHost
from photofinish.results.records import Timings, read_record


@pytest.mark.slow
def test_what_a_stage_records_fits_the_clock_on_the_wall(
    make_experiment: MakeExperiment, cpu_host: CpuHost, packed_split: PackedSplit, tmp_path: Path
) -> None:
    stage = TrainingStage.prepare(tmp_path, make_experiment(epochs=20), cpu_host, packed_split.folder)
    before = time.time()
    with stage.start() as process:
        output, _ = process.communicate()
    wall_seconds = time.time() - before
    assert process.returncode == 0, output
    timings = read_record(stage.out / "timed" / "timings.json", Timings)
    epochs_seconds = sum(epoch.training_seconds + epoch.validation_seconds for epoch in timings.epochs)
    assert -0.05 < timings.started_at_unix_seconds - before < 0.5
    assert timings.data_seconds + timings.warm_up_seconds < timings.startup_seconds
    assert timings.startup_seconds + epochs_seconds < timings.total_seconds
    assert timings.total_seconds + timings.tracking_seconds < wall_seconds + 0.05
    assert timings.epochs[-1].ended_at_unix_seconds == pytest.approx(
        timings.started_at_unix_seconds + timings.total_seconds + timings.tracking_seconds, abs=2
    )
    median_seconds = statistics.median(epoch.training_seconds for epoch in timings.epochs)
    assert timings.images_per_second * median_seconds == pytest.approx(timings.training_image_count)
    assert timings.resumed_at_epochs == ()


def test_a_throughput_that_is_not_of_the_median_epoch_of_all_repeats_is_refused(make_result: MakeResult) -> None:
    made_up = make_result(epoch_seconds=(0.7, 0.2, 0.3, 50.0), repeats=((0.4,),))
    assert isinstance(made_up, Trained)
    timings = made_up.timings
    assert timings.median_epoch_seconds == 0.4
    assert timings.images_per_second * timings.median_epoch_seconds == pytest.approx(timings.training_image_count)
    of_the_first = timings.training_image_count / 0.5
    with pytest.raises(ValidationError, match="images_per_second times the median epoch"):
        Timings.model_validate(dict(timings) | {"images_per_second": of_the_first})


_DRAW_SLOWLY = """
import sys, runpy, time, photofinish.runs.views
write_views = photofinish.runs.views.write_views

def slowly(*arguments):
    time.sleep(2)
    write_views(*arguments)

photofinish.runs.views.write_views = slowly
runpy.run_path({stage!r}, run_name="__main__")
"""


@pytest.mark.slow
def test_what_is_drawn_for_people_to_look_at_is_not_timed(
    make_experiment: MakeExperiment, cpu_host: CpuHost, packed_split: PackedSplit, tmp_path: Path
) -> None:
    stage = TrainingStage.prepare(tmp_path, make_experiment(epochs=1), cpu_host, packed_split.folder)
    before = time.time()
    with stage.start("-c", _DRAW_SLOWLY.format(stage=str(STAGE))) as process:
        output, _ = process.communicate()
    wall_seconds = time.time() - before
    assert process.returncode == 0, output
    assert (stage.out / "learned" / "first_batch.png").is_file()
    timings = read_record(stage.out / "timed" / "timings.json", Timings)
    assert timings.total_seconds + timings.tracking_seconds < wall_seconds - 2
