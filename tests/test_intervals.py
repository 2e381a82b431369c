"""Means and ratios of epochs, and from how many epochs on a start-up is repaid."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from conftest import MakeResult
from result_files import BUSY, trained

from photofinish.answer import speedups
from photofinish.answer.speedups import epoch_speedup
from photofinish.answer.spending import time_to_target
from photofinish.reporting.sentences import break_even_epochs
from photofinish.results import EpochMetrics, EpochTiming
from photofinish.results.job_times import Timings


def test_a_ratio_is_that_of_the_means(make_result: MakeResult) -> None:
    cpu = trained(make_result, epoch_seconds=(1.0, 5.0, 6.0)).timings
    assert epoch_speedup(cpu, trained(make_result, epoch_seconds=(2.0, 3.0)).timings).ratio == 1.6


def timings(make_result: MakeResult, startup_seconds: float, epochs: Sequence[float]) -> Timings:
    """Make epochs with a validation of 0.1 s each."""
    made_up = trained(make_result, epoch_seconds=tuple(epochs)).timings
    return made_up.model_copy(update={"startup_seconds": startup_seconds})


def test_the_extra_start_up_is_divided_by_what_an_epoch_gains(make_result: MakeResult) -> None:
    """6 s more to start and 1.5 s less an epoch. The start-ups may be off by a factor of 1.3."""
    cpu = timings(make_result, 2.0, (2.0, 1.9, 2.1, 2.0, 2.0))
    found = speedups.break_even(cpu, timings(make_result, 8.0, (0.5,) * 5))
    assert found.epochs == pytest.approx(4)
    assert found.interval == pytest.approx((2.37, 6.34), rel=0.01)
    assert break_even_epochs(found) == "after 4 epochs (3 to 7)"
    # Validation takes the CPU a second more, so 3 s more to start are repaid after 3 epochs.
    validated = (EpochTiming(1.0, 1.1, 1.7e9),) * 5
    cpu = timings(make_result, 2.0, (1.0,) * 5).model_copy(update={"epochs": validated})
    gpu = timings(make_result, 5.0, (1.0,) * 5)
    assert speedups.break_even(cpu, gpu).epochs == pytest.approx(3)


@pytest.mark.parametrize(
    ("startup", "epochs", "expected", "words"),
    [
        (1.0, (0.5,) * 5, 0.0, "at once"),
        (2.0, (2.0,) * 5, 0.0, "at an unknown time, because its epochs may be no shorter"),
        (3.0, (1.0,) * 5, 1.0, "after 1 epoch (0 to 3)"),
        (8.0, (3.0,) * 5, math.inf, "never, because its epochs are no shorter"),
        (2.0, (3.0,) * 5, math.inf, "never, because its epochs are no shorter"),
        (8.0, (2.0,) * 5, math.inf, "at an unknown time, because its epochs may be no shorter"),
        (1.0, (2.75,) * 5, math.inf,
         "never, because its epochs are no shorter"),
        (4.0, (1.0,), 2.0, "after 2 epochs (no range)"),
    ],
)  # fmt: skip
def test_when_a_start_up_is_repaid(
    make_result: MakeResult, startup: float, epochs: tuple[float, ...], expected: float, words: str
) -> None:
    cpu = timings(make_result, 2.0, (2.0,) * 5)
    found = speedups.break_even(cpu, timings(make_result, startup, epochs))
    assert (found.epochs, break_even_epochs(found)) == (pytest.approx(expected), words)


def test_on_a_busy_machine_the_epochs_that_repay_have_no_interval(make_result: MakeResult) -> None:
    quiet, gpu = timings(make_result, 2.0, (2.0,) * 5), timings(make_result, 8.0, (1.2,) * 5)
    busy = quiet.model_copy(update={"load": (BUSY,)})
    within, unknown = (speedups.break_even(cpu, gpu).interval for cpu in (quiet, busy))
    assert within
    assert unknown is None


def test_the_interval_holds_the_truth_in_nine_of_ten_tries(make_result: MakeResult) -> None:
    """Epochs of 3 and 1 s that vary by 5 %, and 10 s more of start-up: 5 epochs."""
    random, held = np.random.default_rng(5), 0
    for _ in range(200):
        noise = np.exp(random.normal(0, 0.05, (2, 5)))
        cpu, gpu = 3.0 * noise[0] - 0.1, 1.0 * noise[1] - 0.1
        both = timings(make_result, 2.0, cpu), timings(make_result, 12.0, gpu)
        interval = speedups.break_even(*both).interval
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
