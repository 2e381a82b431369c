"""The three speed-ups: their times, intervals and winners, when a start-up is repaid, and costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from conftest import MakeResult
from outputs import comparison_rows, record_of
from result_files import BUSY, changed_history, job_of, pair_of, trained, with_timings

from photofinish.answer.comparison import compare
from photofinish.answer.prices import TimeToTarget, cost, resource_use, time_to_target
from photofinish.answer.speedups import break_even, speedups
from photofinish.answer.uncertainty import MACHINE, ONCE
from photofinish.config.compare import Comparing, Prices
from photofinish.reporting.tables import figures_table
from photofinish.results import EpochMetrics, EpochTiming
from photofinish.results.job import Job, JobPair
from photofinish.results.measured import TrainedRecords
from photofinish.results.trained import DeviceLabel

PRICED = Comparing(target_accuracy=0.9, prices=Prices(currency="EUR", cpu_hour=0.36, gpu_hour=3.6))
FIVE = (2.9, 3.0, 3.0, 3.0, 3.1)


def timings(make_result: MakeResult, **settings: object) -> Job:
    return job_of(trained(make_result, **settings))


def test_each_speed_up_is_of_its_own_times(make_result: MakeResult) -> None:
    cpu = timings(
        make_result, epoch_seconds=(4.0, 4.0), step_seconds=(0.03, 0.03), total_seconds=50.0
    )
    gpu = timings(
        make_result, epoch_seconds=(1.0, 1.0), step_seconds=(0.01, 0.01), total_seconds=40.0
    )
    step, epoch, whole = speedups(cpu, gpu).values()
    assert (step.kind, epoch.kind, whole.kind) == ("step", "epoch", "end_to_end")
    assert (step.ratio, epoch.ratio, whole.ratio) == (pytest.approx(3.0), 4.0, 1.25)
    assert (epoch.cpu_seconds, epoch.device_seconds) == (4.0, 1.0)


def test_the_jobs_time_is_the_mean_over_its_repeats(make_result: MakeResult) -> None:
    epochs = {"epoch_seconds": (3.0, 3.0), "repeats": ((4.0, 4.0),)}
    found = timings(make_result, **epochs, total_seconds=20.0)
    assert found.once_seconds == pytest.approx(20.0 - 6.2)  # a validation takes 0.1 s
    assert found.whole_seconds == pytest.approx(21.0)


@pytest.mark.parametrize("repeats", [0, 4])
def test_a_job_has_an_interval_by_what_differs_between_starts_and_processes(
    make_result: MakeResult, repeats: int
) -> None:
    """Repeats in one process have the speed of the machine in that process."""
    epochs = {"epoch_seconds": (3.0,) * 5, "repeats": ((3.0,) * 5,) * repeats}
    found = timings(make_result, **epochs, total_seconds=18.0)  # 2.5 s of it once
    interval = speedups(found, found)["end_to_end"].interval
    of_startup = ONCE * 2.5 / 18.0
    slowest = math.exp(math.hypot(MACHINE, of_startup, of_startup))
    assert interval == (pytest.approx(1 / slowest), pytest.approx(slowest))


@pytest.mark.parametrize(
    ("gpu", "is_faster"),
    [((1.0,) * 5, True), ((9.0,) * 5, False), (FIVE, None), ((1.0,), None), ((1.0,) * 2, True)],
)
def test_a_winner_needs_an_interval_that_does_not_span_1(
    make_result: MakeResult, gpu: tuple[float, ...], is_faster: bool | None
) -> None:
    cpu = timings(make_result, epoch_seconds=FIVE)
    found = speedups(cpu, timings(make_result, epoch_seconds=gpu))["epoch"]
    assert found.is_faster is is_faster


def test_a_busy_run_has_speedups_without_an_interval(make_result: MakeResult) -> None:
    quiet, busy = (timings(make_result, epoch_seconds=FIVE, load=each) for each in ((), (BUSY,)))
    for cpu, gpu in ((busy, quiet), (quiet, busy)):
        found = speedups(cpu, gpu).values()
        assert [each.interval for each in found] == [None, None, None]
        assert [each.ratio for each in found] == [pytest.approx(1.0)] * 3


def timed(make_result: MakeResult, device: DeviceLabel = "gpu") -> TrainedRecords:
    """Make a job of 36 s with three epochs of 10 s, the first of which reaches 90 %."""
    result = trained(make_result, device=device, epoch_seconds=(9.9,) * 3, total_seconds=36.0)
    history = changed_history(result, validation_accuracy=[0.9, 0.95, 0.99])
    return replace(with_timings(result, startup_seconds=5.0), history=history)


@pytest.mark.parametrize(
    ("prices", "amount"),
    [(Prices(cpu_hour=0.36), 0.0036), (Prices(gpu_hour=3.6), None), (Prices(cpu_hour=0.0), 0.0)],
)
def test_only_what_has_a_price_costs(prices: Prices, amount: float | None) -> None:
    assert cost("cpu", 36.0, Comparing(prices=prices)) == pytest.approx(amount)


def test_a_target_that_is_not_reached_leaves_the_cost_of_the_training(
    make_result: MakeResult,
) -> None:
    result = timed(make_result)
    settings = PRICED.model_copy(update={"target_accuracy": 0.995})
    found = resource_use(job_of(result), settings)
    assert found.target == TimeToTarget(0.995, None, None)
    assert found.cost_to_target is None
    assert found.cost == pytest.approx(36 / 3600 * 3.6)
    pair = pair_of(timed(make_result, device="cpu"), result, settings)
    figures = {row[""]: row["GPU"] for row in figures_table(record_of(pair))}
    assert figures["target accuracy"] == "0.995"
    assert "time to the target" not in figures
    further = {"seeds": (result.times.epochs,) * 4, "repeats": (result.times.epochs[:2],)}
    found = resource_use(job_of(with_timings(result, **further)), settings)
    assert found.cost == pytest.approx((36 + 4 * 30 + 20) / 3600 * 3.6)


def test_the_table_has_costs_also_to_the_target_and_nothing_where_they_are_unknown(
    make_result: MakeResult,
) -> None:
    pair = pair_of(timed(make_result, device="cpu"), timed(make_result), PRICED)
    cpu, gpu = comparison_rows([pair])
    assert gpu["cost_currency"] == "EUR"
    assert gpu["cost"] == pytest.approx(36 / 3600 * 3.6)
    assert cpu["cost"] == pytest.approx(36 / 3600 * 0.36)
    # One of three epochs, after 5 s of start-up.
    assert (gpu["target_epoch"], gpu["target_seconds"]) == (1, pytest.approx(15.0))
    assert gpu["target_cost"] == pytest.approx(15 / 3600 * 3.6)
    for row in comparison_rows([compare(JobPair(pair.cpu, pair.gpu))]):
        columns = ("cost", "target_accuracy", "target_seconds", "target_cost")
        assert {row[column] for column in columns} == {None}


def started(make_result: MakeResult, startup_seconds: float, epochs: Sequence[float]) -> Job:
    """Make epochs with a validation of 0.1 s each."""
    made_up = trained(make_result, epoch_seconds=tuple(epochs))
    return job_of(with_timings(made_up, startup_seconds=startup_seconds))


def test_the_extra_start_up_is_divided_by_what_an_epoch_gains(make_result: MakeResult) -> None:
    """6 s more to start and 1.5 s less an epoch. The start-ups may be off by a factor of 1.3."""
    cpu = started(make_result, 2.0, (2.0, 1.9, 2.1, 2.0, 2.0))
    found = break_even(cpu, started(make_result, 8.0, (0.5,) * 5))
    assert found.epochs == pytest.approx(4)
    assert found.interval == pytest.approx((2.37, 6.34), rel=0.01)
    # Validation takes the CPU a second more, so 3 s more to start are repaid after 3 epochs.
    validated = (EpochTiming(1.0, 1.1, 1.7e9),) * 5
    cpu = trained(make_result, epoch_seconds=(1.0,) * 5)
    cpu = job_of(with_timings(cpu, startup_seconds=2.0, epochs=validated))
    gpu = started(make_result, 5.0, (1.0,) * 5)
    assert break_even(cpu, gpu).epochs == pytest.approx(3)


@pytest.mark.parametrize(
    ("startup", "epochs", "expected"),
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
    make_result: MakeResult,
    startup: float,
    epochs: tuple[float, ...],
    expected: float,
) -> None:
    cpu = started(make_result, 2.0, (2.0,) * 5)
    found = break_even(cpu, started(make_result, startup, epochs))
    assert found.epochs == pytest.approx(expected)


def test_on_a_busy_machine_the_epochs_that_repay_have_no_interval(make_result: MakeResult) -> None:
    quiet, gpu = started(make_result, 2.0, (2.0,) * 5), started(make_result, 8.0, (1.2,) * 5)
    busy = replace(quiet, busy=("made up",))
    within, unknown = (break_even(cpu, gpu).interval for cpu in (quiet, busy))
    assert within
    assert unknown is None


def test_the_interval_holds_the_truth_in_nine_of_ten_tries(make_result: MakeResult) -> None:
    """Epochs of 3 and 1 s that vary by 5 %, and 10 s more of start-up: 5 epochs."""
    random, held = np.random.default_rng(5), 0
    for _ in range(200):
        noise = np.exp(random.normal(0, 0.05, (2, 5)))
        cpu, gpu = 3.0 * noise[0] - 0.1, 1.0 * noise[1] - 0.1
        both = started(make_result, 2.0, cpu), started(make_result, 12.0, gpu)
        interval = break_even(*both).interval
        assert interval is not None
        held += interval[0] <= 5 <= interval[1]
    assert held >= 180


def test_the_time_to_a_target_has_start_up_and_every_epoch_so_far() -> None:
    """2 s of start-up, then 1 + 0.1 and 3 + 0.1 s, of 7.3 s in all epochs."""
    accuracies = enumerate((0.0, 0.9, 0.8), 1)
    history = [EpochMetrics(epoch, 0.1, 0.5, 0.5, accuracy) for epoch, accuracy in accuracies]
    epochs = [EpochTiming(seconds, 0.1, 1.7e9) for seconds in (1.0, 3.0, 3.0)]
    found = time_to_target(history, epochs, 2.0, 0.9)
    assert found.epoch == 2
    assert found.seconds == pytest.approx(6.2)
    assert time_to_target(history, epochs, 2.0, 0.95).epoch is None
