"""Upper bounds on speed-ups, against examples calculated by hand and simulated trainings."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from conftest import MakeExperiment
from outputs import verdict
from planted_jobs import LOADER, SETTINGS, compared, make_job
from result_files import (
    BUSY,
    QUIET,
    STEP,
    made_up_attribution,
    resident_tried,
    text_of,
    whole_epoch,
)

from photofinish.answer.speedups import speedup_bounds
from photofinish.answer.word import bounded, loads_longer_than_it_starts
from photofinish.config.compare import Comparing
from photofinish.results import TimedPart
from photofinish.results.job import Job
from photofinish.results.measured import epoch_by_parts
from photofinish.results.measured_jobs import loading_seconds
from photofinish.results.measurements import LoaderTimes, StepMeasurements, TriedWorkers

STEPS = 38
"""Steps of an epoch with 608 samples in batches of 16."""


def on_cpu(waiting: float = 0.09, epoch_seconds: float | None = None, **changed: Any) -> Job:
    """Make five epochs of 38 steps of 10 ms with their waits, and 2.5 s beside them."""
    seconds = STEPS * (waiting + 0.01)
    given: dict[str, Any] = {
        "samples": 16 * STEPS,
        "startup_seconds": 2.25,
        "parts": (whole_epoch(seconds, STEPS, STEPS * waiting),) * 3,
        "attribution": made_up_attribution(waiting),
        "settings": LOADER,
        "validation_seconds": 0.0,
    }
    passes = (epoch_seconds or seconds,) * 5
    return make_job(passes, **{"seconds": 2.5 + sum(passes)} | given | changed)


def epoch_bound(job: Job) -> Any:
    return speedup_bounds(job).epoch


def test_an_epoch_keeps_its_loading_and_the_job_its_start_up_too() -> None:
    bounds: Any = speedup_bounds(on_cpu())
    assert bounds.epoch.as_measured == pytest.approx(100 / 90)
    assert bounds.epoch.at_most == pytest.approx(100 / 90)
    whole_seconds, stays_seconds = 2.5 + 5 * STEPS * 0.1, 2.25 + 5 * STEPS * 0.09
    assert bounds.job.staying_seconds == pytest.approx(stays_seconds)
    assert bounds.job.as_measured < bounds.job.at_most < 1.3 * bounds.job.as_measured
    assert bounds.job.as_measured == pytest.approx(whole_seconds / stays_seconds)


def test_uneven_waits_make_the_bound_less_sure() -> None:
    uneven = [whole_epoch(STEPS * 0.1, STEPS, STEPS * wait) for wait in (0.09, 0.08, 0.1)]
    sure, unsure = epoch_bound(on_cpu()), epoch_bound(on_cpu(parts=uneven))
    assert sure.as_measured == pytest.approx(unsure.as_measured)
    assert sure.at_most < unsure.at_most


def test_a_small_last_batch_is_a_fraction_of_a_step() -> None:
    """Its wait is as long as a whole batch's, as where a file is opened for each."""
    parts = [whole_epoch(0.01, 1, 0.004)] * 22 + [whole_epoch(0.01, 0.1, 0.004)]
    bound = epoch_bound(on_cpu(epoch_seconds=0.23, parts=parts, epoch_steps=22.1))
    assert (bound.whole_seconds, bound.staying_seconds) == pytest.approx((0.23, 0.092))


@pytest.mark.parametrize(
    ("loading_seconds", "why"), [(STEPS * 0.09, None), (None, "its loading was not timed")]
)
def test_a_job_without_timed_steps_on_one_batch_keeps_its_waits(
    loading_seconds: float | None, why: str | None
) -> None:
    slow = on_cpu(attribution=None, loading_seconds=loading_seconds, operations=STEP)
    pair = compared(slow, settings=Comparing(accelerators=("T4",)))
    assert "waiting for batches is 90% of an epoch" in text_of(verdict(pair))
    assert bool(pair.bounds.epoch) is (why is None)
    assert [bool(offer.estimate) for offer in pair.options] == ([] if why else [True])
    assert pair.not_counted == why


@pytest.mark.parametrize(
    ("tried_seconds", "seconds"), [({1: 0.02, 2: 0.015}, 0.015), ({}, 0.04 / 2)]
)
def test_workers_that_hide_loading_still_load_as_long_as_when_they_were_tried(
    make_experiment: MakeExperiment, tried_seconds: dict[int, float], seconds: float
) -> None:
    """Numbers that were not tried load as fast as if each worker had a core."""
    tried = tuple(
        TriedWorkers(workers=workers, batch_seconds=each, start_seconds=0.5)
        for workers, each in tried_seconds.items()
    )
    loader = LoaderTimes(whole_seconds=0.04, tried_workers=tried)
    part = whole_epoch(STEPS * 0.02, STEPS, STEPS * 0.01)
    steps = StepMeasurements(parts=(part,), epoch_steps=STEPS, loader=loader)
    for persistent, starts in ((True, 0.0), (False, 0.5 * len(tried[:1]))):
        source = {"name": "loader", "workers": 2, "persistent_workers": persistent}
        experiment, by_parts = make_experiment(input=source), epoch_by_parts([part], STEPS)
        expected = STEPS * seconds + starts
        assert loading_seconds(experiment, steps, by_parts) == pytest.approx(expected)


def test_loading_never_takes_longer_than_a_faster_training() -> None:
    bounds: Any = speedup_bounds(on_cpu(epoch_seconds=STEPS * 0.1 * 0.85))
    assert bounds.epoch.as_measured == pytest.approx(100 / 90)
    assert bounds.job.staying_seconds < bounds.job.whole_seconds
    busy = on_cpu(epoch_seconds=STEPS * 0.2, load=(BUSY,), measured_load=(QUIET,))
    assert epoch_bound(busy).staying_seconds == pytest.approx(STEPS * 0.09)


def test_on_a_busy_machine_loading_takes_half() -> None:
    busy = epoch_bound(on_cpu(load=(BUSY,), measured_load=(BUSY,)))
    at_most = 1 + 0.01 / (0.09 / 2)
    assert 0.99 * at_most < busy.at_most < 1.2 * at_most
    assert loads_longer_than_it_starts(compared(on_cpu(load=(BUSY,))))


@pytest.mark.parametrize(("cpu_seconds", "is_bounded"), [(34.0, True), (8.0, False)])
def test_a_busy_machine_does_not_hide_that_a_job_is_all_start_up(
    cpu_seconds: float, *, is_bounded: bool
) -> None:
    startup = {"startup_seconds": 35.0, "startup_cpu_seconds": cpu_seconds, "seconds": 41.0}
    job = on_cpu(waiting=0.02, settings=SETTINGS, load=(BUSY,), **startup)
    assert (bounded(compared(job)) is not None) is is_bounded


@pytest.mark.parametrize(
    ("job", "is_bounded"),
    [
        (on_cpu(loader=resident_tried(0.1, 0.01)), True),
        (on_cpu(waiting=0.05, settings=SETTINGS, startup_seconds=3.25), False),
        (on_cpu(waiting=0.0001, startup_seconds=0.3, seconds=12.0), False),
    ],
)
def test_a_bound_says_no_or_nothing(job: Job, *, is_bounded: bool) -> None:
    answer = verdict(compared(job))
    no_gpu = re.match(r"No GPU will help: .* \(at most [\d.]+x faster\)", answer.answer)
    assert (no_gpu is not None) is is_bounded
    assert ("`input: resident`" in answer.action) is is_bounded


@pytest.mark.parametrize(("batches", "wobble"), [(8, 0.3), (40, 0.1)])
def test_a_device_that_computes_in_no_time_seldom_beats_the_bound(
    batches: int, wobble: float
) -> None:
    """At most 5 % of the bounds of 200 training runs are beaten by a GPU beside the training.

    Batches vary by `wobble`, loading was measured in another process whose speed differs by 7 %,
    and start-ups vary by 15 %, of which one holds for both devices.
    """
    random, beaten_of_epoch, beaten_of_job = np.random.default_rng(5), 0, 0

    def loading(speed: float, *shape: int) -> Any:
        return 0.05 * speed * np.exp(random.normal(0, wobble, shape))

    def part(speed: float) -> TimedPart:
        seconds = loading(speed)
        return whole_epoch(seconds + 0.01 * speed, 1, seconds)

    for _ in range(200):
        measured, here = np.exp(random.normal(0, 0.07, 2))
        started, start = 2.25 * np.exp(random.normal(0, 0.15, 2))
        epochs = (loading(here, 5, STEPS) + 0.01 * here).sum(axis=1)
        job = make_job(
            epochs,
            startup_seconds=started,
            samples=16 * STEPS,
            parts=[part(measured) for _ in range(batches)],
            settings=LOADER,
            validation_seconds=0.0,
        )
        bounds, really = speedup_bounds(job), loading(here, 5, STEPS).sum(axis=1)
        beaten_of_epoch += np.mean(epochs) / np.mean(really) > bounds.epoch.at_most
        of_job = (start + sum(epochs)) / (start + really.sum())
        beaten_of_job += of_job > bounds.job.at_most
    assert max(beaten_of_epoch, beaten_of_job) <= 0.05 * 200
