"""What no GPU can shorten: bounds worked by hand, of made-up figures and of trainings that were slowed on purpose."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conftest import MakeExperiment, MakeResult
from result_files import BUSY, QUIET, made_up_attribution, pair_of, trained

from photofinish.comparing.bounds import HIGH, ceiling
from photofinish.comparing.device_results import Trained
from photofinish.comparing.pairs import Comparison
from photofinish.comparing.verdict import verdict
from photofinish.machine.load import LoadWindow
from photofinish.report.rows import comparison_rows
from photofinish.report.tables import ceiling_table, overview_table

RUN = 1.2
"""what a run may be off"""
STEPS = 38
"""an epoch's, of 600 images by 16"""
CEILINGS = ("epoch_ceiling", "job_ceiling")


@pytest.fixture
def on_cpu(make_result: MakeResult, make_experiment: MakeExperiment) -> Any:
    """Five epochs of 38 steps that compute for 10 ms after their batch came; 2.25 s of start-up but for its warm-up."""

    def make(waiting: float = 0.09, workers: int | None = 0, epochs: int = 5, **changed: Any) -> Trained:
        attribution = changed.pop("attribution", made_up_attribution(waiting=waiting))
        epoch_seconds = changed.pop("epoch_seconds", (STEPS * (waiting + 0.01),) * epochs)
        total_seconds = changed.pop("total_seconds", 2.5 + sum(epoch_seconds))
        made_up = trained(
            make_result, epoch_seconds=epoch_seconds, step_seconds=(0.01,) * 3, total_seconds=total_seconds,
            attribution=attribution,
        )  # fmt: skip
        settings = {"name": "resident"} if workers is None else {"name": "loader", "workers": workers}
        record = made_up.record.model_copy(update={"experiment": make_experiment(epochs=epochs, input=settings)})
        return replace(made_up, record=record, timings=made_up.timings.model_copy(update=changed))

    return make


def test_an_epoch_through_a_loader_is_no_shorter_than_its_batches_alone_take(on_cpu: Any) -> None:
    found = ceiling(on_cpu(waiting=0.09))
    assert found.epoch
    assert found.epoch.measured_seconds == pytest.approx(STEPS * 0.09)
    assert found.epoch.at_most == pytest.approx(100 / 90 * RUN)


def test_the_whole_job_keeps_half_of_its_start_up_and_all_epochs_loading(on_cpu: Any) -> None:
    found = ceiling(on_cpu(waiting=0.09))
    assert found.job
    assert found.job.measured_seconds == pytest.approx(2.25 + 5 * STEPS * 0.09)
    assert found.job.at_most == pytest.approx((2.5 + 5 * STEPS * 0.1) / (2.25 / 2 + 5 * STEPS * 0.09 / RUN))
    assert found.job_if_resident
    assert found.job_if_resident.at_most == pytest.approx((2.5 + 5 * STEPS * 0.1) / (2.25 / 2))


def test_batches_gathered_on_the_device_leave_start_up_alone(on_cpu: Any) -> None:
    found = ceiling(on_cpu(waiting=0.001, workers=None))
    assert found.epoch is None
    assert found.job
    assert found.job.at_most == pytest.approx((2.5 + 5 * STEPS * 0.011) / (2.25 / 2))


def test_the_bound_is_of_slow_epochs_and_quick_batches(on_cpu: Any) -> None:
    batches = (0.09, *(0.09 + 0.002 * number for number in range(-5, 6)))  # the first, then 80 to 100 ms
    attribution = made_up_attribution(0.09, batch_alone_seconds=batches)
    epochs = (*(STEPS * 0.1,) * 9, STEPS * 0.09, STEPS * 0.11)
    found = ceiling(on_cpu(epochs=11, epoch_seconds=epochs, attribution=attribution)).epoch
    assert found
    # a tenth of the epochs take over 100 ms a step, a tenth of the batches under 82 ms; the first batch is of its own
    assert found.whole_seconds == pytest.approx(STEPS * 0.1)
    assert found.staying_seconds == pytest.approx((0.09 + 37 * 0.082) / RUN)


def test_workers_batches_that_come_two_at_a_time_are_counted_by_rounds(on_cpu: Any) -> None:
    """24 ms and nothing, in any order: 12 ms a batch, half a round left out; the workers' start, 60 ms, an epoch."""
    attribution = made_up_attribution(0.06, batch_alone_seconds=(0.06, *(0.024, 0.0, 0.0, 0.024) * 2, 0.0))
    found = ceiling(on_cpu(workers=2, epoch_seconds=(STEPS * 0.07,) * 5, attribution=attribution)).epoch
    assert found
    assert found.staying_seconds == pytest.approx((0.06 + 37 * 0.012) / RUN)


def test_without_workers_the_quicker_of_two_passes_over_the_same_batches_counts(on_cpu: Any) -> None:
    attribution = made_up_attribution(0.08, batch_alone_seconds=(0.09,) * 9)
    parts = attribution.parts.model_copy(update={"waiting_seconds": (0.085, *(0.08,) * 9)})
    attribution = attribution.model_copy(update={"parts": parts})
    found = ceiling(on_cpu(epoch_seconds=(STEPS * 0.1,) * 5, attribution=attribution)).epoch
    assert found
    assert found.staying_seconds == pytest.approx((0.085 + (STEPS - 1) * 0.08) / RUN)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"load": (BUSY,)}, "the machine was busy"),
        ({"epoch_seconds": (38.0,) * 5}, "its steps, taken apart after the training, make up 3.80 s"),
        ({"attribution": None, "not_attributed": "several processes train together"}, "several processes"),
    ],
)
def test_figures_that_carry_no_cause_carry_no_bound(on_cpu: Any, changed: dict[str, Any], why: str) -> None:
    pair = pair_of(on_cpu(**changed))
    found = verdict(pair)
    assert (pair.ceiling.epoch, pair.ceiling.job, pair.ceiling.sentence) == (None, None, None)
    assert f"it was not trained on a GPU, and no bound is told ({why}" in found.answer
    assert found.answer.endswith("): nothing can be said of one.")
    assert "at most" not in found.text


@pytest.mark.parametrize(
    ("load", "of"),
    [((BUSY,), "Take the CPU's times"), ((QUIET, BUSY), "Take what was measured after the CPU's training")],
)
def test_how_busy_the_machine_was_is_told_once(on_cpu: Any, load: tuple[LoadWindow, ...], of: str) -> None:
    found = verdict(pair_of(on_cpu(load=load)))
    assert [caution.startswith(f"{of} with care: other programs used 40%") for caution in found.cautions] == [True]
    assert found.text.count("other programs used") == 1


def alone(run: Trained, name: str = "small-mlp") -> Comparison:
    return pair_of(replace(run, experiment=name))


def test_the_verdict_begins_with_the_bound_what_stays_and_what_lifts_it(on_cpu: Any) -> None:
    found = verdict(alone(on_cpu(waiting=0.09)))
    assert found.answer == (
        "Even a GPU that computes in no time would make an epoch at most 1.34 times as fast in this machine, and the "
        "whole job at most 1.40 times: at least 2.85 s of 3.80 s an epoch are spent loading its data, which stays on "
        "the CPU (`input: resident` would lift that, where the images fit into the GPU's memory; the job's would then "
        "be 19.2 times)."
    )
    assert found.details[0].startswith("Some CPU trained it to 75.00% test accuracy in 21.5 s, of which 2.50 s were")
    assert "is a bound, no estimate" in found.details[0]


def test_nothing_is_said_to_lift_it_where_the_images_do_not_fit(on_cpu: Any) -> None:
    run = on_cpu(attribution=made_up_attribution(0.09, resident=None))
    assert alone(run).ceiling.job_if_resident is None
    assert verdict(alone(run)).answer.endswith("loading its data, which stays on the CPU.")


def test_a_long_start_up_is_what_limits_a_job_of_epochs_that_nothing_limits(on_cpu: Any) -> None:
    found = verdict(alone(on_cpu(waiting=0.001, workers=None)))
    assert found.answer == (
        "Nothing measured here keeps a GPU from making an epoch much faster, but even one that computes in no time "
        "would make the whole job at most 4.08 times as fast in this machine: at least 1.12 s of 4.59 s are start-up, "
        "which stays on the CPU."
    )


def test_a_high_bound_says_nothing_against_a_gpu(on_cpu: Any) -> None:
    long = alone(on_cpu(waiting=0.09, workers=None))
    slow_network = made_up_attribution(0.0001)
    found = alone(on_cpu(waiting=0.0001, attribution=slow_network, startup_seconds=0.3))
    assert long.ceiling.job
    assert long.ceiling.job.at_most <= HIGH
    assert found.ceiling.epoch
    assert found.ceiling.job
    assert min(found.ceiling.epoch.at_most, found.ceiling.job.at_most) > HIGH
    assert verdict(found).answer.startswith(
        "Nothing measured here keeps a GPU from being much faster (122 times as fast is its bound): start-up and "
        "loading, which stays on the CPU, is at least "
    )


def test_bounds_stand_in_columns_and_a_table_of_their_own(on_cpu: Any, make_result: MakeResult) -> None:
    loader, resident = alone(on_cpu(), "b-loader"), alone(on_cpu(waiting=0.001, workers=None), "a-resident")
    found = {(row["experiment"], row["device"]): row for row in comparison_rows([loader, resident])}
    assert found["b-loader", "cpu"]["epoch_ceiling"] == pytest.approx(100 / 90 * RUN)
    assert found["a-resident", "cpu"]["epoch_ceiling"] is None
    assert found["a-resident", "cpu"]["job_ceiling"] == pytest.approx(4.08, abs=0.01)
    assert {found[name, "gpu"][column] for name in ("b-loader", "a-resident") for column in CEILINGS} == {None}
    shown = [[*row.values()] for row in [*ceiling_table(loader), *ceiling_table(resident)]]
    assert shown == [
        ["an epoch", "3.80 s", "3.42 s", "2.85 s", "1.34x"],
        ["the job", "21.5 s", "19.4 s", "15.4 s", "1.40x"],
        ["an epoch", "n/a", "n/a", "n/a", "n/a"],
        ["the job", "4.59 s", "2.25 s", "1.12 s", "4.08x"],
    ]
    overview, with_gpu = overview_table([loader]), pair_of(on_cpu(), make_result(device="gpu"))
    assert (overview[0]["an epoch"], overview[0]["whole job"]) == ("≤ 1.34x", "≤ 1.40x")
    assert ceiling_table(with_gpu) == []
    assert not any("≤" in cell for cell in overview_table([with_gpu])[0].values())


@pytest.mark.parametrize(("batches", "wobble"), [(8, 0.05), (8, 0.3), (40, 0.1)])
def test_a_device_that_computes_in_no_time_seldom_beats_the_bound(on_cpu: Any, batches: int, wobble: float) -> None:
    """200 trainings, and a run of such a device after each: it beats at most 5 in 100 of the bounds that are told.

    Batches vary by `wobble`, steps take a fifth of their time, whole runs are off by 7 % and start-ups by 30 %.
    """
    random, told, beaten_of_epoch, beaten_of_job = np.random.default_rng(5), 0, 0, 0

    def loading(run: float, *shape: int) -> Any:
        return 0.05 * run * np.exp(random.normal(0, wobble, shape))

    for _ in range(200):
        (here, there), (started, starts) = np.exp(random.normal(0, 0.07, 2)), 2.25 * np.exp(random.normal(0, 0.3, 2))
        attribution = made_up_attribution(0.05, batch_alone_seconds=tuple(loading(here, batches)))
        parts = attribution.parts.model_copy(update={"waiting_seconds": tuple(loading(here, batches))})
        epochs = tuple((loading(here, 5, STEPS) + 0.01 * here).sum(axis=1))
        run = on_cpu(
            attribution=attribution.model_copy(update={"parts": parts}),
            epoch_seconds=epochs,
            startup_seconds=started,
            warm_up_seconds=0.0,
            total_seconds=started + sum(epochs),
        )
        found, really = ceiling(run), loading(there, 5, STEPS).sum(axis=1)
        if found.epoch and found.job:
            told += 1
            beaten_of_epoch += np.median(epochs) / np.median(really) > found.epoch.at_most
            beaten_of_job += run.timings.total_seconds / (starts + really.sum()) > found.job.at_most
    assert told > 100
    assert max(beaten_of_epoch, beaten_of_job) <= 0.05 * told
