"""Upper bounds on speed-ups, against examples calculated by hand and simulated trainings."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conftest import MakeExperiment, MakeResult
from result_files import (
    BUSY,
    QUIET,
    as_result,
    made_up_attribution,
    pair_of,
    resident_tried,
    text_of,
    trained,
)

from photofinish.answer.bounds import speedup_bounds
from photofinish.answer.fair_cpu import SHARED_CACHES
from photofinish.answer.result import Trained
from photofinish.answer.word import bounded, loads_longer_than_it_starts
from photofinish.reporting.comparison_rows import comparison_rows
from photofinish.reporting.sentences import verdict
from photofinish.results.measurements import LoaderTimes, TriedWorkers
from photofinish.results.timed_parts import TimedPart

STEPS = 38
"""Steps of an epoch with 608 samples in batches of 16."""


@pytest.fixture
def on_cpu(make_result: MakeResult, make_experiment: MakeExperiment) -> Any:
    """Make five epochs of 38 steps of 10 ms, and 2.25 s of start-up after a warm-up."""

    def make(
        waiting: float = 0.09, workers: int | None = 0, epochs: int = 5, **changed: Any
    ) -> Trained:
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
        timings = result.timings.model_copy(update=given | changed)
        return replace(result, record=record, timings=timings)

    return make


def epoch_bound(run: Trained) -> Any:
    return speedup_bounds(as_result(run)).epoch


def test_an_epoch_keeps_its_loading_and_the_job_its_start_up_too(on_cpu: Any) -> None:
    found: Any = speedup_bounds(as_result(on_cpu(waiting=0.09)))
    assert found.epoch.as_measured == pytest.approx(100 / 90)
    assert found.epoch.at_most == pytest.approx(100 / 90)
    whole_seconds, loading_seconds = 2.5 + 5 * STEPS * 0.1, 5 * STEPS * 0.09
    assert found.job.measured_seconds == pytest.approx(2.25 + loading_seconds)
    assert found.job.as_measured < found.job.at_most < 1.3 * found.job.as_measured
    assert found.job.as_measured == pytest.approx(whole_seconds / (2.25 + loading_seconds))


@pytest.mark.parametrize("workers", [0, 2])
def test_uneven_batches_make_the_bound_less_sure(on_cpu: Any, workers: int) -> None:
    even, uneven = (0.09,) * 5, (0.09, 0.08, 0.1, 0.08, 0.1)
    attributions = (made_up_attribution(0.09, batch_alone_seconds=each) for each in (even, uneven))
    found = [epoch_bound(on_cpu(workers=workers, attribution=each)) for each in attributions]
    assert [each.as_measured for each in found] == pytest.approx([100 / 90] * 2, rel=0.01)
    assert found[0].at_most < found[1].at_most


def test_without_workers_the_faster_of_two_passes_counts(on_cpu: Any) -> None:
    attribution = made_up_attribution(0.08, batch_alone_seconds=(0.09,) * 9)
    parts = attribution.parts.model_copy(update={"waiting_seconds": (0.085, *(0.08,) * 9)})
    attribution = attribution.model_copy(update={"parts": parts})
    found = epoch_bound(on_cpu(epoch_seconds=(STEPS * 0.1,) * 5, attribution=attribution))
    assert found.measured_seconds == pytest.approx(0.085 + (STEPS - 1) * 0.08)


def test_a_small_last_batch_is_a_fraction_of_a_step(on_cpu: Any) -> None:
    """An epoch of 20 samples has a batch of 16, and one of 4 in a fourth of the time."""
    attribution = made_up_attribution(0.09, batch_alone_seconds=(0.09, 0.09 / 4))
    uneven = {name: (all_[0], all_[0] / 4) for name, all_ in attribution.parts}
    parts = attribution.parts.model_copy(update=uneven)
    attribution = attribution.model_copy(update={"parts": parts})
    small = {"training_image_count": 20, "epoch_seconds": (0.1 * 1.25,) * 5}
    for workers in (0, 2):
        found = epoch_bound(on_cpu(workers=workers, attribution=attribution, **small))
        assert found.measured_seconds == pytest.approx(0.09 * 1.25)
        assert found.as_measured == pytest.approx(100 / 90)


def test_figures_that_show_no_cause_leave_the_bound_by_start_up(on_cpu: Any) -> None:
    slow = on_cpu(epoch_seconds=(38.0,) * 5)
    shared = on_cpu(attribution=None, not_attributed="several processes")
    for run, why in (slow, "the parts of its steps add up to 3.8 s"), (shared, "several processes"):
        pair = pair_of(run)
        assert pair.bounds.epoch is None
        assert pair.bounds.job.measured_seconds == 2.25
        assert why in text_of(verdict(pair))


def test_slow_steps_keep_the_loading_of_the_few_batches_that_were_loaded_alone(on_cpu: Any) -> None:
    alone = {"slow_batch_seconds": (0.07, 0.08, 0.09), "steps_per_epoch": 38}
    found: Any = speedup_bounds(as_result(on_cpu(attribution=None, not_attributed="slow", **alone)))
    assert found.loading_not_known is None
    assert found.epoch.measured_seconds == pytest.approx(38 * 0.08)
    none: Any = {"start_seconds": 0.0, "cpu_seconds": (), "memory_bytes": ()}
    tried = TriedWorkers(workers=1, batch_seconds=0.02, **none)
    two = tried.model_copy(update={"workers": 2})
    loader = LoaderTimes(samples=1, tried_workers=(tried, two))
    run = on_cpu(attribution=None, workers=2, loader=loader, **alone)
    assert epoch_bound(run).measured_seconds == pytest.approx(38 * 0.02)


def parts_of(epoch_seconds: float) -> dict[str, Any]:
    """Return `measure`'s parts of such epochs."""
    part = TimedPart(seconds=epoch_seconds, steps=STEPS, epoch=0, holds="steps")
    return {"parts": (part,) * 3, "epoch_steps": STEPS}


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_training_that_took_other_times_than_its_measurement_has_no_cause(
    on_cpu: Any, factor: float
) -> None:
    """Its steps and loading are as measured: 0.1 s each."""
    run = on_cpu(epoch_seconds=(STEPS * 0.1 * factor,) * 5, **parts_of(STEPS * 0.1))
    pair = pair_of(run)
    why = f"an epoch took 3.8 s when measured, and {3.8 * factor:.1f} s in the training"
    assert why in text_of(verdict(pair))
    assert pair.bounds.epoch is None


def test_loading_never_takes_longer_than_a_faster_training(on_cpu: Any) -> None:
    run = on_cpu(epoch_seconds=(STEPS * 0.1 * 0.85,) * 5, **parts_of(STEPS * 0.1))
    found: Any = speedup_bounds(as_result(run))
    assert found.epoch.as_measured == pytest.approx(100 / 90)
    assert found.job.measured_seconds < found.job.whole_seconds
    measured = {"load": (BUSY,), "measured_load": (QUIET,), **parts_of(STEPS * 0.1)}
    busy: Any = speedup_bounds(as_result(on_cpu(epoch_seconds=(STEPS * 0.2,) * 5, **measured)))
    assert busy.epoch.measured_seconds == pytest.approx(STEPS * 0.09)


def test_on_a_busy_machine_loading_takes_its_cpu_time_or_half(on_cpu: Any) -> None:
    for cpu_seconds, least in ((None, 0.09 / 2), (0.06, 0.06 / SHARED_CACHES)):
        attribution = made_up_attribution(0.09, batch_alone_cpu_seconds=cpu_seconds)
        load = {"load": (BUSY,), "measured_load": (BUSY,)}
        busy = epoch_bound(on_cpu(**load, attribution=attribution))
        at_most = 1 + 0.01 / least
        assert 0.99 * at_most < busy.at_most < 1.2 * at_most
    assert loads_longer_than_it_starts(pair_of(on_cpu(load=(BUSY,))))


def test_a_busy_machine_does_not_hide_that_a_job_is_all_start_up(on_cpu: Any) -> None:
    for cpu_seconds, is_bounded in ((34.0, True), (8.0, False)):
        startup = {"startup_seconds": 35.0, "startup_cpu_seconds": cpu_seconds, "load": (BUSY,)}
        run = on_cpu(waiting=0.02, workers=None, total_seconds=41, **startup)
        assert (bounded(pair_of(run)) is not None) is is_bounded


SLOW_NETWORK = made_up_attribution(0.0001)


@pytest.mark.parametrize(
    ("changed", "is_bounded"),
    [
        ({"waiting": 0.09, "loader": resident_tried(0.1, 0.01)}, True),
        ({"waiting": 0.05, "workers": None, "startup_seconds": 3.25}, False),
        ({"attribution": SLOW_NETWORK, "startup_seconds": 0.3, "total_seconds": 12}, False),
    ],
)
def test_a_bound_says_no_or_nothing(
    on_cpu: Any, changed: dict[str, Any], *, is_bounded: bool
) -> None:
    pair = pair_of(on_cpu(**changed))
    found = verdict(pair)
    assert (bounded(pair) is not None) is is_bounded
    assert bool(re.match(r"No GPU will help: .* \(at most [\d.]+x faster\)", found.answer)) is is_bounded
    assert ("`input: resident`" in found.action) is is_bounded


def test_the_csv_has_the_bounds(on_cpu: Any) -> None:
    loader, resident = (
        pair_of(replace(run, experiment=name))
        for name, run in (("a", on_cpu()), ("b", on_cpu(waiting=0.001, workers=None)))
    )
    columns = ("epoch_ceiling", "job_ceiling")
    rows = [[row[column] for column in columns] for row in comparison_rows([loader, resident])]
    assert rows[0][0] == pytest.approx(100 / 90)
    assert rows[2] == [None, pytest.approx(2.33, abs=0.01)]


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

    for _ in range(200):
        measured, here = np.exp(random.normal(0, 0.07, 2))
        started, start = 2.25 * np.exp(random.normal(0, 0.15, 2))
        attribution = made_up_attribution(
            0.05, batch_alone_seconds=tuple(loading(measured, batches))
        )
        parts = attribution.parts.model_copy(
            update={"waiting_seconds": tuple(loading(measured, batches))}
        )
        epochs = tuple((loading(here, 5, STEPS) + 0.01 * here).sum(axis=1))
        run = on_cpu(
            attribution=attribution.model_copy(update={"parts": parts}),
            epoch_seconds=epochs,
            startup_seconds=started,
            warm_up_seconds=0.0,
            total_seconds=started + sum(epochs),
            **parts_of(float((loading(measured, STEPS) + 0.01 * measured).sum())),
        )
        found, really = speedup_bounds(as_result(run)), loading(here, 5, STEPS).sum(axis=1)
        if found.epoch and found.job:
            bounds += 1
            beaten_of_epoch += np.mean(epochs) / np.mean(really) > found.epoch.at_most
            of_job = (start + sum(epochs)) / (start + really.sum())
            beaten_of_job += of_job > found.job.at_most
    assert bounds > 100
    assert max(beaten_of_epoch, beaten_of_job) <= 0.05 * bounds
