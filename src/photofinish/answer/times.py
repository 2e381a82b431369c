"""Times of a job, its epochs and its steps, with their errors."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from photofinish.answer.fair_cpu import least_seconds, slowdown
from photofinish.answer.uncertainty import (
    MACHINE,
    UNBOUNDED,
    Interval,
    LogError,
    UncertainTime,
    error_of_mean,
)
from photofinish.results.job_times import JobTimes

STARTUP = LogError.reaching(1.3)
"""Error of a start-up that was timed once.

Twelve starts in a row differed by up to 1.09 on a quiet machine.
"""


def job_interval(run: JobTimes) -> Interval:
    """Return the interval of the whole job's time."""
    return job_time(run).interval


def job_time(run: JobTimes, *, with_seeds: bool = False) -> UncertainTime:
    """Return the time of the whole job in another process, or on a quiet machine."""
    passes_seconds = run.passes_seconds + (run.seeds_seconds if with_seeds else 0.0)
    time = training_time(run, run.once_seconds, passes_seconds, error_of_passes(run))
    if run.is_bound:
        time = UncertainTime(time.seconds, slower=UNBOUNDED)
    if run.may_stop_early:
        timed_share = 1 - run.untimed_epochs / run.planned_epochs
        time = time.reaching(run.once_seconds + timed_share * passes_seconds)
    return time.reaching(time.seconds * least_seconds(run) / run.whole_seconds)


def training_time(
    run: JobTimes, once_seconds: float, passes_seconds: float, of_mean: LogError
) -> UncertainTime:
    """Return the time of a training of any length: its start-up and its passes."""
    seconds = once_seconds + passes_seconds
    of_startup = STARTUP.times(min(run.startup_seconds, once_seconds) / seconds)
    of_passes = of_mean.times(passes_seconds / seconds)
    return UncertainTime(seconds).with_errors(MACHINE, of_startup, of_passes)


def error_of_passes(run: JobTimes) -> LogError:
    """Return the error of the passes' time in the whole job.

    The passes that were timed are known. If n of N were, the error of their mean counts by the root
    of 1 - n / N, as in a sample of a finite population.
    """
    return error_of_mean(run.pass_seconds).times(math.sqrt(run.untimed_epochs / run.planned_epochs))


def mean_time(run: JobTimes, values: Sequence[float]) -> UncertainTime:
    """Return the mean of a run's steps or epochs in another process, or on a quiet machine."""
    time = UncertainTime(statistics.fmean(values))
    time = time.with_errors(MACHINE, error_of_mean(values))
    return time.reaching(time.seconds / slowdown(run))
