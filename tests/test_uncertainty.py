"""How often intervals hold the truth, and what never widens or narrows them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray
from planted_jobs import make_job

from photofinish.answer.times import MACHINE, UncertainTime, error_of_mean, job_time, total
from photofinish.results.job import Job

STARTUP_SECONDS = 5.0
TRIES = 200
Values = NDArray[np.float64]


@dataclass(frozen=True)
class Drift:
    """Speed of a machine: an Ornstein-Uhlenbeck process of its logarithm, and white noise."""

    deviation: float
    seconds: float
    """Time in which the speed forgets what it was."""

    def epochs(self, count: int, seed: int, tries: int = TRIES) -> Values:
        """Return nominal epochs of 1 s for each of many tries. Each noise has 2 to 5 %."""
        random = np.random.default_rng(seed)
        memory = math.exp(-1 / self.seconds)
        logs = self.deviation * random.standard_normal((count, tries))
        for index in range(1, count):
            logs[index] = memory * logs[index - 1] + math.sqrt(1 - memory**2) * logs[index]
        noise = random.uniform(0.02, 0.05, tries) * random.standard_normal((count, tries))
        return np.exp(logs + noise).T


def partly(passes: Sequence[float], planned: int) -> Job:
    """Make a job of which these passes were trained."""
    left = planned - len(passes)
    return make_job(passes, left=left, startup_seconds=STARTUP_SECONDS, validation_seconds=0.0)


DRIFTS = [Drift(0.0, 30)] + [
    Drift(deviation, seconds) for deviation in (0.05, 0.1) for seconds in (10, 30, 120)
]
WINDOWS = (15, 720), (60, 7200)


@pytest.mark.parametrize("drift", DRIFTS, ids=str)
@pytest.mark.parametrize(("seconds", "job_seconds"), WINDOWS)
def test_a_jobs_interval_holds_its_time_while_the_machine_drifts(
    drift: Drift, seconds: int, job_seconds: int
) -> None:
    held = 0
    for epochs in drift.epochs(job_seconds, seed=seconds):
        low, high = job_time(partly(epochs[:seconds].tolist(), job_seconds)).interval
        held += low <= STARTUP_SECONDS + epochs.sum() <= high
    assert held >= 0.85 * TRIES


@pytest.mark.parametrize(("deviation", "least"), [(0.0, 0.95), (0.05, 0.85), (0.1, 0.75)])
def test_a_ratios_interval_holds_the_truth_if_each_side_has_its_own_speed(
    deviation: float, least: float
) -> None:
    """A CPU's 15 s of 12 min, and a whole training on a GPU. The true ratio is 12."""
    random, held = np.random.default_rng(3), 0
    for _ in range(TRIES):
        on_cpu, on_gpu = np.exp(random.normal(0, deviation, 2))
        cpu_epochs, gpu_epochs = np.exp(random.normal(0, 0.03, (2, 15)))
        cpu = partly((12 * on_cpu * cpu_epochs).tolist(), 720)
        gpu = partly(np.tile(on_gpu * gpu_epochs, 48).tolist(), 720)
        low, high = job_time(cpu).over(job_time(gpu))
        held += low <= (STARTUP_SECONDS + 12 * 720) / (STARTUP_SECONDS + 720) <= high
    assert held >= least * TRIES


def test_more_epochs_do_not_widen_the_interval() -> None:
    epochs = Drift(0.05, 30).epochs(240, seed=7)
    widths = []
    for count in (2, 4, 15, 60, 240):
        ends = [job_time(partly(each[:count].tolist(), 7200)).interval for each in epochs]
        widths.append(float(np.median([high / low for low, high in ends])))
    # A short window shows less of a slow drift.
    assert all(later < 1.01 * earlier for earlier, later in pairwise(widths))


def test_a_run_that_comes_differs_from_the_one_that_was_timed() -> None:
    """Each run has its own speed: 8 % apart, a range of one run's error would hold 65 of 100."""
    random, held = np.random.default_rng(4), 0
    for _ in range(TRIES):
        timed, to_come = np.exp(random.normal(0, 0.08, 2))
        epochs = timed * np.exp(random.normal(0, 0.03, 15))
        low, high = job_time(partly(epochs.tolist(), 720)).interval
        held += low <= STARTUP_SECONDS + 720 * to_come <= high
    assert held >= 0.85 * TRIES


@pytest.mark.parametrize("shares", [(1.0, 0.5), (1.0, 0.9), (0.1, 1.0)])
@pytest.mark.parametrize(("count", "deviation"), [(3, 0.06), (3, 0.2), (6, 0.1)])
def test_ratios_and_differences_of_two_means_hold_the_truth(
    shares: tuple[float, float], count: int, deviation: float
) -> None:
    random, held = np.random.default_rng(5), np.zeros(2)
    for _ in range(TRIES):
        one, other = (
            UncertainTime(share * values.mean()).off_by(error_of_mean(values.tolist()))
            for share, values in zip(
                shares, np.exp(random.normal(0, deviation, (2, count))), strict=True
            )
        )
        truths = shares[0] / shares[1], shares[0] - shares[1]
        ends = one.over(other), one.minus(other)
        held += [low <= truth <= high for (low, high), truth in zip(ends, truths, strict=True)]
    assert held.min() >= 0.87 * TRIES


def test_jobs_on_one_machine_are_off_together() -> None:
    one = UncertainTime(10.0, machine=MACHINE).off_by(0.1)
    times = [replace(one, seconds=seconds) for seconds in (10.0, 30.0, 40.0)]
    assert total(times[:2]).interval == pytest.approx(times[2].interval)
    exact = UncertainTime(40.0)
    low, high = total([one, exact]).interval
    assert (low, high) == pytest.approx((40 + one.interval[0], 40 + one.interval[1]), rel=0.01)


def test_what_is_not_known_leaves_an_end_open() -> None:
    known, unknown = UncertainTime(10.0), UncertainTime(10.0).reaching(0.0)
    assert unknown.interval == (0.0, 10.0)
    assert unknown.over(known) == (0.0, 1.0)
    assert known.over(unknown) == (1.0, math.inf)
    assert unknown.minus(known) == (-10.0, 0.0)
    once = UncertainTime(10.0).off_by(error_of_mean([10.0]))
    assert once.interval == (0.0, math.inf)
    assert once.minus(known) == (-10.0, math.inf)


@pytest.mark.parametrize(("memory", "least"), [(0.0, 0.9), (0.6, 0.85), (0.9, 0.7)])
def test_the_mean_of_values_that_drift_is_within_its_error(memory: float, least: float) -> None:
    random, held = np.random.default_rng(1), 0
    for _ in range(TRIES):
        logs = [random.standard_normal()]
        while len(logs) < 60:
            further = math.sqrt(1 - memory**2) * random.standard_normal()
            logs.append(memory * logs[-1] + further)
        values = np.exp(0.05 * np.array(logs))
        held += abs(math.log(values.mean())) <= error_of_mean(values.tolist())
    assert held >= least * TRIES
