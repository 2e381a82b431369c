"""Upper bounds on speed-ups, against examples calculated by hand and simulated trainings."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conftest import MakeExperiment, MakeResult
from outputs import verdict
from result_files import (
    BUSY,
    QUIET,
    STEP,
    job_of,
    made_up_attribution,
    pair_of,
    resident_tried,
    text_of,
    trained,
    whole_epoch,
    with_timings,
)

from photofinish.answer.bounds import speedup_bounds
from photofinish.answer.word import bounded, loads_longer_than_it_starts
from photofinish.config.compare import Comparing
from photofinish.results import TimedPart
from photofinish.results.measured import TrainedRecords
from photofinish.results.measurements import LoaderTimes, TriedWorkers

STEPS = 38
"""Steps of an epoch with 608 samples in batches of 16."""


@pytest.fixture
def on_cpu(make_result: MakeResult, make_experiment: MakeExperiment) -> Any:
    """Make five epochs of 38 steps of 10 ms, and 2.25 s of start-up after a warm-up."""

    def make(
        waiting: float = 0.09, workers: int | None = 0, epochs: int = 5, **changed: Any
    ) -> TrainedRecords:
        attribution = changed.pop("attribution", made_up_attribution(waiting=waiting))
        epoch_seconds = changed.pop("epoch_seconds", (STEPS * (waiting + 0.01),) * epochs)
        total_seconds = changed.pop("total_seconds", 2.5 + sum(epoch_seconds))
        result = trained(
            make_result,
            epoch_seconds=epoch_seconds,
            step_seconds=(0.01,) * 3,
            total_seconds=total_seconds,
            attribution=attribution,
        )
        settings = (
            {"name": "resident"} if workers is None else {"name": "loader", "workers": workers}
        )
        record = result.record.model_copy(
            update={"experiment": make_experiment(epochs=epochs, input=settings)}
        )
        given = {"startup_seconds": 2.25, "training_image_count": 608}
        given |= parts_of(epoch_seconds[0], waiting)
        return replace(with_timings(result, **given | changed), record=record)

    return make


def epoch_bound(run: TrainedRecords) -> Any:
    return speedup_bounds(job_of(run)).epoch


def test_an_epoch_keeps_its_loading_and_the_job_its_start_up_too(on_cpu: Any) -> None:
    found: Any = speedup_bounds(job_of(on_cpu(waiting=0.09)))
    assert found.epoch.as_measured == pytest.approx(100 / 90)
    assert found.epoch.at_most == pytest.approx(100 / 90)
    whole_seconds, loading_seconds = 2.5 + 5 * STEPS * 0.1, 5 * STEPS * 0.09
    assert found.job.measured_seconds == pytest.approx(2.25 + loading_seconds)
    assert found.job.as_measured < found.job.at_most < 1.3 * found.job.as_measured
    assert found.job.as_measured == pytest.approx(whole_seconds / (2.25 + loading_seconds))


def test_uneven_waits_make_the_bound_less_sure(on_cpu: Any) -> None:
    even, uneven = (parts_of(STEPS * 0.1, 0.09)["parts"] for _ in range(2))
    waits = [each * STEPS for each in (0.09, 0.08, 0.1)]
    uneven = tuple(
        replace(part, waiting_seconds=seconds) for part, seconds in zip(uneven, waits, strict=True)
    )
    found = [epoch_bound(on_cpu(parts=each)) for each in (even, uneven)]
    assert [each.as_measured for each in found] == pytest.approx([100 / 90] * 2)
    assert found[0].at_most < found[1].at_most


def test_a_small_last_batch_is_a_fraction_of_a_step(on_cpu: Any) -> None:
    """Its wait is as long as a whole batch's, as where a file is opened for each."""
    parts = [whole_epoch(0.01, 1, 0.004)] * 22 + [whole_epoch(0.01, 0.1, 0.004)]
    run = on_cpu(parts=tuple(parts), epoch_steps=22.1, epoch_seconds=(0.23,) * 5)
    found = epoch_bound(run)
    assert (found.whole_seconds, found.measured_seconds) == pytest.approx((0.23, 0.092))


def test_a_job_without_timed_steps_on_one_batch_keeps_its_waits(on_cpu: Any) -> None:
    slow = on_cpu(attribution=None, not_attributed="20 steps don't fit")
    pair = pair_of(slow)
    assert pair.bounds.epoch
    assert pair.bounds.epoch.as_measured == pytest.approx(100 / 90)
    assert "waiting for batches is 90% of an epoch" in text_of(verdict(pair))
    for workers, is_estimated in ((0, True), (2, False)):  # whose loading no trial knows
        counted = on_cpu(workers=workers, attribution=None, operations=STEP)
        found = pair_of(counted, settings=Comparing(accelerators=("T4",))).renting
        assert [bool(offer.estimate) for offer in found.options] == [True] * is_estimated
        assert found.not_counted == (None if is_estimated else "its loading was not timed")


def test_workers_that_hide_loading_still_load_as_long_as_when_they_were_tried(on_cpu: Any) -> None:
    tried = TriedWorkers(workers=1, batch_seconds=0.02, start_seconds=0.0)
    two = tried.model_copy(update={"workers": 2, "batch_seconds": 0.015})
    for each, seconds in (((tried, two), 0.015), ((), 0.04 / 2)):  # untried: by a core each
        loader = LoaderTimes(whole_seconds=0.04, tried_workers=each)
        run = on_cpu(waiting=0.01, workers=2, loader=loader)
        assert epoch_bound(run).measured_seconds == pytest.approx(STEPS * min(seconds, 0.02))


def parts_of(epoch_seconds: float, waiting: float = 0.09) -> dict[str, Any]:
    """Return `measure`'s parts of such epochs."""
    part = whole_epoch(epoch_seconds, STEPS, STEPS * waiting)
    return {"parts": (part,) * 3, "epoch_steps": STEPS}


def test_loading_never_takes_longer_than_a_faster_training(on_cpu: Any) -> None:
    run = on_cpu(epoch_seconds=(STEPS * 0.1 * 0.85,) * 5, **parts_of(STEPS * 0.1))
    found: Any = speedup_bounds(job_of(run))
    assert found.epoch.as_measured == pytest.approx(100 / 90)
    assert found.job.measured_seconds < found.job.whole_seconds
    measured = {"load": (BUSY,), "measured_load": (QUIET,), **parts_of(STEPS * 0.1)}
    busy: Any = speedup_bounds(job_of(on_cpu(epoch_seconds=(STEPS * 0.2,) * 5, **measured)))
    assert busy.epoch.measured_seconds == pytest.approx(STEPS * 0.09)


def test_on_a_busy_machine_loading_takes_half(on_cpu: Any) -> None:
    busy = epoch_bound(on_cpu(load=(BUSY,), measured_load=(BUSY,)))
    at_most = 1 + 0.01 / (0.09 / 2)
    assert 0.99 * at_most < busy.at_most < 1.2 * at_most
    assert loads_longer_than_it_starts(pair_of(on_cpu(load=(BUSY,))))


def test_a_busy_machine_does_not_hide_that_a_job_is_all_start_up(on_cpu: Any) -> None:
    for cpu_seconds, is_bounded in ((34.0, True), (8.0, False)):
        startup = {"startup_seconds": 35.0, "startup_cpu_seconds": cpu_seconds, "load": (BUSY,)}
        run = on_cpu(waiting=0.02, workers=None, total_seconds=41, **startup)
        assert (bounded(pair_of(run)) is not None) is is_bounded


@pytest.mark.parametrize(
    ("changed", "is_bounded"),
    [
        ({"waiting": 0.09, "loader": resident_tried(0.1, 0.01)}, True),
        ({"waiting": 0.05, "workers": None, "startup_seconds": 3.25}, False),
        ({"waiting": 0.0001, "startup_seconds": 0.3, "total_seconds": 12}, False),
    ],
)
def test_a_bound_says_no_or_nothing(
    on_cpu: Any, changed: dict[str, Any], *, is_bounded: bool
) -> None:
    pair = pair_of(on_cpu(**changed))
    found = verdict(pair)
    assert (bounded(pair) is not None) is is_bounded
    no_gpu = re.match(r"No GPU will help: .* \(at most [\d.]+x faster\)", found.answer)
    assert (no_gpu is not None) is is_bounded
    assert ("`input: resident`" in found.action) is is_bounded


@pytest.mark.parametrize(("batches", "wobble"), [(8, 0.3), (40, 0.1)])
def test_a_device_that_computes_in_no_time_seldom_beats_the_bound(
    on_cpu: Any, batches: int, wobble: float
) -> None:
    """At most 5 % of the bounds of 200 training runs are beaten by a GPU beside the training.

    Batches vary by `wobble`, loading was measured in another process whose speed differs by 7 %,
    and start-ups vary by 15 %, of which one holds for both devices.
    """
    random, bounds, beaten_of_epoch, beaten_of_job = np.random.default_rng(5), 0, 0, 0

    def loading(run: float, *shape: int) -> Any:
        return 0.05 * run * np.exp(random.normal(0, wobble, shape))

    def part(run: float) -> TimedPart:
        seconds = loading(run)
        return whole_epoch(seconds + 0.01 * run, 1, seconds)

    for _ in range(200):
        measured, here = np.exp(random.normal(0, 0.07, 2))
        started, start = 2.25 * np.exp(random.normal(0, 0.15, 2))
        epochs = tuple((loading(here, 5, STEPS) + 0.01 * here).sum(axis=1))
        run = on_cpu(
            epoch_seconds=epochs,
            startup_seconds=started,
            warm_up_seconds=0.0,
            total_seconds=started + sum(epochs),
            parts=[part(measured) for _ in range(batches)],
        )
        found, really = speedup_bounds(job_of(run)), loading(here, 5, STEPS).sum(axis=1)
        if found.epoch and found.job:
            bounds += 1
            beaten_of_epoch += np.mean(epochs) / np.mean(really) > found.epoch.at_most
            of_job = (start + sum(epochs)) / (start + really.sum())
            beaten_of_job += of_job > found.job.at_most
    assert bounds > 100
    assert max(beaten_of_epoch, beaten_of_job) <= 0.05 * bounds
