"""Time of a whole job, with its interval, and the statistics of all intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from photofinish.answer.fair_cpu import (
    fewer_threads,
    least_epoch_seconds,
    least_startup_seconds,
    slow_kernels,
    slowdown,
    slowdown_of_a_thread,
)
from photofinish.results.job_times import JobTimes

LEAST_VALUES = 5
"""Minimum number of values: with five, 9 of 10 intervals held the truth, with four, 87 of 100."""
HELD = 0.9
"""Share of intervals that contain the true value."""
RUN_TO_RUN = 1.05
"""Factor by which all times of a run may be off together.

A training was compared with itself 100 times on an idle machine. Without this factor, up to 25
comparisons found a false winner, with it at most 3.
"""
ONCE = 1.3
"""Factor by which the time outside the epochs may be off, mainly the start-up.

Twelve starts in a row differed by up to 1.09 on a quiet machine.
"""
_RESAMPLES = 2000

Interval = tuple[float, float]
FloatArray = NDArray[np.float64]


def job_interval(run: JobTimes) -> Interval:
    """Return the interval of the whole job's time."""
    return widened(job_spread(run))


def job_spread(run: JobTimes, seed: int = 0) -> Interval:
    """Return the times of a fast and a slow run of the job on a quiet machine.

    In addition, both may be off by `RUN_TO_RUN`. For a busy machine, the fast run is as fast as if
    no program had slowed it. If fewer threads were faster, the fast run uses them. With slow
    kernels, it computes in fp32.
    """
    once_seconds, epochs = run.once_seconds, run.planned_epochs
    # Without the interruptions, a resumed training would have started only once.
    least_once_seconds = once_seconds - run.interruptions * run.startup_seconds
    passes = [seconds - once_seconds for seconds in run.end_to_end_seconds]
    low = high = statistics.median(passes)
    if len(passes) >= LEAST_VALUES:
        low, high = percentile_interval(drawn_medians(passes, seed))
    if run.untimed_epochs:
        fast, slow = _extrapolated(run)
        low, high = min(low, fast), max(high, slow)
    if run.busy:
        fast, slow = np.quantile(run.pass_seconds, [0.1, 0.9]) * epochs
        factor = slowdown(run)
        # Fast epochs were slowed too, unless the least time of an epoch is known.
        fast = fast if least_epoch_seconds(run) else fast / factor
        low, high = min(low / factor, float(fast)), max(high, float(slow))
        after_seconds = (least_once_seconds - run.startup_seconds) / slowdown_of_a_thread(run.load)
        least_once_seconds = least_startup_seconds(run) + max(0.0, after_seconds)
    if fair := [each.job_seconds for each in (fewer_threads(run), slow_kernels(run)) if each]:
        low = max(0.0, low - (run.whole_seconds - min(fair)))
    return max(0.0, least_once_seconds) / ONCE + low, once_seconds * ONCE + high


def _extrapolated(run: JobTimes) -> Interval:
    """Return the interval of all passes' time, from the timed passes by Student's t.

    A single pass does not bound it above.
    """
    each, left = run.pass_seconds, run.untimed_epochs
    timed_seconds = run.passes_seconds * (1 - left / run.planned_epochs)
    if len(each) == 1:
        return timed_seconds, math.inf
    error = left * statistics.stdev(each) * math.sqrt(1 / len(each) + run.epochs_a_pass / left)
    half = students_t(len(each) - 1) * error
    return max(timed_seconds, run.passes_seconds - half), run.passes_seconds + half


def widened(interval: Interval, margins: Interval = (RUN_TO_RUN, RUN_TO_RUN)) -> Interval:
    """Divide the lower end by its margin, and multiply the upper end by its margin."""
    (low, high), (too_high, too_low) = interval, margins
    return low / too_high, high * too_low


def students_t(freedom: int) -> float:
    """Return the half width of a mean's interval, in standard errors.

    Exact for 1 and 2 degrees of freedom. Others are off by 0.05 % at most, by Abramowitz and Stegun
    26.7.5. SciPy would take 0.2 s to import, for each experiment that is measured.
    """
    if freedom == 1:
        return math.tan(HELD * math.pi / 2)
    if freedom == 2:
        return HELD * math.sqrt(2 / (1 - HELD**2))
    x = statistics.NormalDist().inv_cdf((1 + HELD) / 2)
    terms = (
        (x**3 + x) / 4,
        (5 * x**5 + 16 * x**3 + 3 * x) / 96,
        (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / 384,
        (79 * x**9 + 776 * x**7 + 1482 * x**5 - 1920 * x**3 - 945 * x) / 92160,
    )
    return x + sum(term * float(freedom) ** -power for power, term in enumerate(terms, 1))


def drawn_medians(values: Sequence[float], seed: int) -> FloatArray:
    """Return the medians of 2,000 draws of the values with replacement.

    Use different seeds for values that are compared, because equal seeds give equal draws.
    """
    count = len(values)
    places = np.random.default_rng(seed).integers(count, size=(_RESAMPLES, count))
    medians: FloatArray = np.median(np.sort(values)[places], axis=1)
    return medians


def percentile_interval(drawn: FloatArray) -> Interval:
    """Return the interval of the middle 90 % of draws, which may contain infinities."""
    ends = [(1 - HELD) / 2, (1 + HELD) / 2]
    low, high = np.quantile(drawn, ends, method="inverted_cdf")
    return float(low), float(high)
