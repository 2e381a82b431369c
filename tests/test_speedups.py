"""The three speed-ups: their times, intervals and winners, when a start-up is repaid, and costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

import numpy as np
import pytest
from conftest import MakeResult
from outputs import comparison_rows, record_of
from planted_jobs import compared, history_of, lasting, make_job, make_model, while_busy
from result_files import job_of, trained, with_record, with_timings

from photofinish.answer.prices import TimeToTarget, cost, resource_use, time_to_target
from photofinish.answer.speedups import break_even, speedups
from photofinish.answer.times import MACHINE, ONCE
from photofinish.config.compare import Comparing, Prices
from photofinish.config.experiment import LoaderInput, Schedule
from photofinish.config.losses_and_metrics import EarlyStopping
from photofinish.reporting.tables import figures_table
from photofinish.results import EpochTiming
from photofinish.results.job import Job
from photofinish.results.trained import DeviceLabel

PRICED = Comparing(target_accuracy=0.9, prices=Prices(currency="EUR", cpu_hour=0.36, gpu_hour=3.6))
FIVE = (3.0, 3.1, 3.1, 3.1, 3.2)


def test_a_training_is_a_job_with_the_mean_time_of_its_repeats_and_all_its_seeds(
    make_result: MakeResult,
) -> None:
    """A validation takes 0.1 s. Two of four epochs were trained, and two by a further seed."""
    epochs = {"epoch_seconds": (2.9, 2.9), "repeats": ((3.9, 3.9),)}
    result = trained(make_result, **epochs, total_seconds=20.0, step_seconds=(0.01, 0.02))
    changed = {"epochs_left": 2, "seeds": (result.times.epochs,), "resumed_at_epochs": (1,)}
    job = job_of(with_timings(result, startup_seconds=2.0, **changed))
    assert (job.startup_seconds, job.once_seconds) == (2.0, pytest.approx(14.0))
    assert job.passes_seconds == pytest.approx(4 * 3.5)
    assert job.seeds_seconds == pytest.approx(4 * 3.0)
    assert job.pass_seconds == pytest.approx((3.0, 3.0, 4.0, 4.0))
    assert job.validation_share == pytest.approx(0.1 / 2.9)
    assert (job.epochs, job.untimed_epochs, job.interruptions) == (4, 2.0, 1)
    assert (job.step_seconds, job.loads_itself) == ((0.01, 0.02), False)
    loader = {"input": LoaderInput(name="loader", workers=0)}
    experiment = result.record.experiment.model_copy(update=loader)
    part = replace(job.parts[0], seconds=3.0, steps=30, waiting_seconds=0.6)
    by_parts = with_timings(result, steady_state=None, parts=(part,))
    loads = job_of(with_record(by_parts, experiment=experiment))
    assert (loads.step_seconds, loads.loads_itself) == (pytest.approx((0.08,)), True)


AHEAD = LoaderInput(name="loader", pin_memory=True, non_blocking=True)


@pytest.mark.parametrize(
    ("settings", "field", "value"),
    [
        ({"schedule": Schedule(name="cosine")}, "settings.depends_on_epochs", True),
        ({"early_stopping": EarlyStopping(patience=1)}, "trained.stops_early", True),
        ({"deterministic": False}, "settings.is_captured", False),
        ({"input": AHEAD}, "settings.overlaps_copies", True),
    ],
)
def test_a_job_has_what_follows_from_the_settings_of_its_record(
    make_result: MakeResult, settings: dict[str, Any], field: str, value: bool
) -> None:
    result, read = trained(make_result), attrgetter(field)
    experiment = result.record.experiment.model_copy(update=settings)
    changed = job_of(with_record(result, experiment=experiment))
    assert read(job_of(result)) is not value
    assert read(changed) is value


def test_a_job_has_the_shape_of_targets_the_test_samples_and_the_speed_of_its_record(
    make_result: MakeResult,
) -> None:
    result = trained(make_result)
    job = job_of(with_record(result, target_shape=(20, 20), samples={"train": 600, "test": 60}))
    assert job.trained
    assert (job.trained.target_shape, job.trained.test_samples) == ((20, 20), 60)
    assert job.samples_per_second == result.times.images_per_second


def test_a_job_has_an_interval_by_what_differs_between_starts_and_processes() -> None:
    """Repeats would not narrow it: in one process they have the machine's speed in that process."""
    job = lasting(18.0)  # 2.5 s of it once
    interval = speedups(job, job)["end_to_end"].interval
    of_startup = ONCE * 2.5 / 18.0
    slowest = math.exp(math.hypot(MACHINE, of_startup, of_startup))
    assert interval == (pytest.approx(1 / slowest), pytest.approx(slowest))


@pytest.mark.parametrize(
    ("gpu", "is_faster"),
    [((1.0,) * 5, True), ((9.0,) * 5, False), (FIVE, None), ((1.0,), None), ((1.0,) * 2, True)],
)
def test_a_winner_needs_an_interval_that_does_not_span_1(
    gpu: tuple[float, ...], is_faster: bool | None
) -> None:
    assert speedups(make_job(FIVE), make_job(gpu, "gpu"))["epoch"].is_faster is is_faster


def test_a_busy_run_has_speedups_without_an_interval() -> None:
    quiet, busy = make_job(FIVE), while_busy(make_job(FIVE))
    for cpu, gpu in ((busy, quiet), (quiet, busy)):
        found = speedups(cpu, gpu).values()
        assert [each.interval for each in found] == [None, None, None]
        assert [each.ratio for each in found] == [pytest.approx(1.0)] * 3


def timed(device: DeviceLabel = "gpu") -> Job:
    """Make a job of 36 s with three epochs of 10 s, the first of which reaches 90 %."""
    model = make_model(
        device,
        history=history_of(1.0, 1.0, 1.0, accuracies=(0.9, 0.95, 0.99)),
        epochs=(EpochTiming(9.9, 0.1, 1.7e9),) * 3,
        startup_seconds=5.0,
    )
    return make_job((10.0,) * 3, device, seconds=36.0, startup_seconds=5.0, trained=model)


@pytest.mark.parametrize(
    ("prices", "amount"),
    [(Prices(cpu_hour=0.36), 0.0036), (Prices(gpu_hour=3.6), None), (Prices(cpu_hour=0.0), 0.0)],
)
def test_only_what_has_a_price_costs(prices: Prices, amount: float | None) -> None:
    assert cost("cpu", 36.0, Comparing(prices=prices)) == pytest.approx(amount)


def test_a_target_that_is_not_reached_leaves_the_cost_of_the_training() -> None:
    job, settings = timed(), PRICED.model_copy(update={"target_accuracy": 0.995})
    use = resource_use(job, settings)
    assert use.target == TimeToTarget(0.995, None, None)
    assert use.cost_to_target is None
    assert use.cost == pytest.approx(36 / 3600 * 3.6)
    table = figures_table(record_of(compared(timed("cpu"), job, settings)))
    figures = {row[""]: row["GPU"] for row in table}
    assert figures["target accuracy"] == "0.995"
    assert "time to the target" not in figures
    epochs = job.trained.epochs
    further = replace(job.trained, seeds=(epochs,) * 4, repeats=(epochs[:2],))
    use = resource_use(replace(job, trained=further), settings)
    assert use.cost == pytest.approx((36 + 4 * 30 + 20) / 3600 * 3.6)


def test_the_table_has_costs_also_to_the_target_and_nothing_where_they_are_unknown() -> None:
    cpu, gpu = comparison_rows([compared(timed("cpu"), timed(), PRICED)])
    assert gpu["cost_currency"] == "EUR"
    assert gpu["cost"] == pytest.approx(36 / 3600 * 3.6)
    assert cpu["cost"] == pytest.approx(36 / 3600 * 0.36)
    # One of three epochs, after 5 s of start-up.
    assert (gpu["target_epoch"], gpu["target_seconds"]) == (1, pytest.approx(15.0))
    assert gpu["target_cost"] == pytest.approx(15 / 3600 * 3.6)
    for row in comparison_rows([compared(timed("cpu"), timed())]):
        columns = ("cost", "target_accuracy", "target_seconds", "target_cost")
        assert {row[column] for column in columns} == {None}


def started(
    startup_seconds: float, passes: Sequence[float], validation_seconds: float = 0.0
) -> Job:
    """Make a job whose passes include this time of validation."""
    times = {"startup_seconds": startup_seconds, "validation_seconds": validation_seconds}
    return make_job(passes, **times)


def test_the_extra_start_up_is_divided_by_what_an_epoch_gains() -> None:
    """6 s more to start and 1.5 s less an epoch. The start-ups may be off by a factor of 1.3."""
    cpu = started(2.0, (2.1, 2.0, 2.2, 2.1, 2.1))
    repaid = break_even(cpu, started(8.0, (0.6,) * 5))
    assert repaid.epochs == pytest.approx(4)
    assert repaid.interval == pytest.approx((2.37, 6.34), rel=0.01)


@pytest.mark.parametrize(
    ("startup", "passes", "expected"),
    [
        (1.0, (0.5,) * 5, 0.0),
        (2.0, (2.0,) * 5, 0.0),
        (3.0, (1.0,) * 5, 1.0),
        (8.0, (3.0,) * 5, math.inf),
        (2.0, (3.0,) * 5, math.inf),
        (8.0, (2.0,) * 5, math.inf),
        (1.0, (2.75,) * 5, math.inf),
        (4.0, (1.0,), 2.0),
    ],
)
def test_when_a_start_up_is_repaid(
    startup: float, passes: tuple[float, ...], expected: float
) -> None:
    repaid = break_even(started(2.0, (2.0,) * 5), started(startup, passes))
    assert repaid.epochs == pytest.approx(expected)


def test_an_epoch_repays_the_validation_that_it_saves_too() -> None:
    """3 s more to start, and 1 s less an epoch, all of it in validation."""
    cpu, gpu = started(2.0, (2.1,) * 5, 1.1), started(5.0, (1.1,) * 5, 0.1)
    assert break_even(cpu, gpu).epochs == pytest.approx(3)


def test_on_a_busy_machine_the_epochs_that_repay_have_no_interval() -> None:
    quiet, gpu = started(2.0, (2.0,) * 5), started(8.0, (1.2,) * 5)
    assert break_even(quiet, gpu).interval
    assert break_even(while_busy(quiet), gpu).interval is None


def test_the_interval_holds_the_truth_in_nine_of_ten_tries() -> None:
    """Epochs of 3 and 1 s that vary by 5 %, and 10 s more of start-up: 5 epochs."""
    random, held = np.random.default_rng(5), 0
    for _ in range(200):
        noise = np.exp(random.normal(0, 0.05, (2, 5)))
        interval = break_even(started(2.0, 3.0 * noise[0]), started(12.0, noise[1])).interval
        held += interval[0] <= 5 <= interval[1]
    assert held >= 180


def test_the_time_to_a_target_has_start_up_and_every_epoch_so_far() -> None:
    """2 s of start-up, then 1 + 0.1 and 3 + 0.1 s, of 7.3 s in all epochs."""
    history = history_of(0.5, 0.5, 0.5, accuracies=(0.0, 0.9, 0.8))
    epochs = [EpochTiming(seconds, 0.1, 1.7e9) for seconds in (1.0, 3.0, 3.0)]
    reached = time_to_target(history, epochs, 2.0, 0.9)
    assert (reached.epoch, reached.seconds) == (2, pytest.approx(6.2))
    assert time_to_target(history, epochs, 2.0, 0.95).epoch is None
