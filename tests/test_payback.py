"""When a longer start-up is repaid, and how soon an accuracy is reached: by hand, and as sure as it says."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest
from conftest import MakeResult
from result_files import BUSY, pair_of, trained

from photofinish.comparing.speedups import payback, time_to_target
from photofinish.report.rows import comparison_rows
from photofinish.results import EpochMetrics, EpochTiming
from photofinish.results.records import Timings


def timings(make_result: MakeResult, startup_seconds: float, epochs: Sequence[float]) -> Timings:
    """Each epoch has a validation of a tenth of a second."""
    made_up = trained(make_result, epoch_seconds=tuple(epochs)).timings
    return made_up.model_copy(update={"startup_seconds": startup_seconds})


def test_the_extra_start_up_over_what_an_epoch_gains(make_result: MakeResult) -> None:
    """By hand: 6 s more to start, 1.5 s less an epoch: level after 4. The CPU's median is 2.0 to 2.2 s, validation
    included, and the ratio of two runs may be 5 % off."""
    cpu = timings(make_result, 2.0, (2.0, 1.9, 2.1, 2.0, 2.0))
    found = payback(cpu, timings(make_result, 8.0, (0.5, 0.5, 0.5, 0.5, 0.5)))
    assert found.epochs == pytest.approx(4)
    assert found.interval == (pytest.approx(6 / (2.2 * 1.05 - 0.6)), pytest.approx(6 / (2.0 / 1.05 - 0.6)))
    assert found.finding == "after 4 epochs (95 % interval 4 to 5)"


def test_the_same_times_always_give_the_same_interval(make_result: MakeResult) -> None:
    cpu, gpu = ([1.0 + scale * step**2 for step in range(40)] for scale in (0.01, 0.001))
    found = payback(timings(make_result, 2.0, cpu), timings(make_result, 8.0, gpu))
    assert found.interval == pytest.approx((0.92, 4.67), rel=0.03)


def test_validation_is_part_of_an_epoch(make_result: MakeResult) -> None:
    """By hand: training takes both a second, validation the CPU a second more: 3 s more to start are level after 3."""
    gpu = timings(make_result, 5.0, (1.0,) * 5)
    slow_to_validate = tuple(EpochTiming(1.0, 1.1, 1.7e9) for _ in range(5))
    cpu = timings(make_result, 2.0, (1.0,) * 5).model_copy(update={"epochs": slow_to_validate})
    assert payback(cpu, gpu).epochs == pytest.approx(3)


@pytest.mark.parametrize(
    ("startup", "epoch", "epochs", "told"),
    [
        (1.0, 0.5, 0.0, "from the start: it starts no later than the CPU"),
        (2.0, 2.0, 0.0, "from the start: it starts no later than the CPU (95 % interval 0 to never)"),
        (3.0, 1.0, 1.0, "after 1 epoch (95 % interval 1 to 2)"),
        (8.0, 3.0, math.inf, "never: its epochs are no shorter"),
        (2.0, 3.0, math.inf, "never: its epochs are no shorter"),
        (8.0, 2.0, math.inf, "never: its epochs are no shorter (95 % interval 58 to never)"),
        (1.0, 2.25, math.inf, "never for good: it starts sooner, and its slower epochs use that up after 4 epochs"),
    ],
)
def test_a_gpu_that_need_not_or_cannot_repay(
    make_result: MakeResult, startup: float, epoch: float, epochs: float, told: str
) -> None:
    found = payback(timings(make_result, 2.0, (2.0,) * 5), timings(make_result, startup, (epoch,) * 5))
    assert (found.epochs, found.finding) == (epochs, told)


def test_on_a_busy_machine_a_gain_below_a_factor_of_2_may_never_repay(make_result: MakeResult) -> None:
    quiet, gpu = timings(make_result, 2.0, (2.0,) * 5), timings(make_result, 8.0, (1.2,) * 5)
    busy = quiet.model_copy(update={"load": (BUSY,)})
    within, open_ended = payback(quiet, gpu).interval, payback(busy, gpu).interval
    assert within
    assert open_ended
    assert within[1] < math.inf == open_ended[1]


def test_a_gain_that_may_be_none_may_never_repay(make_result: MakeResult) -> None:
    cpu = timings(make_result, 2.0, (1.0, 1.0, 1.1, 1.2, 1.2))
    found = payback(cpu, timings(make_result, 3.0, (0.9, 0.9, 1.0, 1.1, 1.1)))
    assert found.epochs == pytest.approx(10)
    assert found.interval is not None
    assert found.interval[1] == math.inf
    assert found.finding.endswith(" to never)")


def test_few_epochs_give_no_interval(make_result: MakeResult) -> None:
    found = payback(timings(make_result, 2.0, (2.0,) * 4), timings(make_result, 4.0, (1.0,) * 9))
    assert (found.epochs, found.interval) == (2.0, None)
    assert found.finding == "after 2 epochs (no interval: 4 epochs, and it takes 5)"


@pytest.mark.parametrize("count", [5, 10])
def test_the_interval_holds_the_truth_as_often_as_it_says(make_result: MakeResult, count: int) -> None:
    """Epochs of 3 and 1 s, validation included, that vary by 5 %, and 10 s more of start-up: 5 epochs."""
    random, held = np.random.default_rng(5), 0
    for _ in range(200):
        cpu, gpu = (seconds * np.exp(random.normal(0, 0.05, count)) - 0.1 for seconds in (3.0, 1.0))
        found = payback(timings(make_result, 2.0, cpu), timings(make_result, 12.0, gpu))
        assert found.interval is not None
        held += found.interval[0] <= 5 <= found.interval[1]
    assert held >= 180


def history(*accuracies: float) -> list[EpochMetrics]:
    return [EpochMetrics(epoch, 0.1, 0.5, 0.5, accuracy) for epoch, accuracy in enumerate(accuracies, 1)]


def epochs(*seconds: float) -> list[EpochTiming]:
    return [EpochTiming(each, 0.1, 1.7e9) for each in seconds]


def test_the_time_to_a_target_is_start_up_and_every_epoch_so_far() -> None:
    """By hand: 2 s of start-up, then 1 + 0.1 and 3 + 0.1 s, of 7.3 s in all epochs."""
    found = time_to_target(history(0.0, 0.9, 0.8), epochs(1.0, 3.0, 3.0), 2.0, 0.9)
    assert found.epoch == 2
    assert found.seconds == pytest.approx(6.2)
    assert found.share == pytest.approx(4.2 / 7.3)


def test_the_table_holds_the_same(make_result: MakeResult) -> None:
    cpu, gpu = make_result(epoch_seconds=(2.0,) * 5), make_result(device="gpu", epoch_seconds=(1.0,) * 5)
    table = pd.DataFrame(comparison_rows([pair_of(cpu, gpu)])).set_index("device")
    assert table["payback_epochs"].isna().tolist() == [True, False]
    assert table.loc["gpu", ["payback_epochs", "payback_epochs_low", "payback_epochs_high"]].tolist() == [0, 0, 0]
