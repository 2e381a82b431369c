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
    return UncertainTime(seconds).with_errors(machine_error(run), of_startup, of_passes)


def error_of_passes(run: JobTimes) -> LogError:
    """Return the error of the passes' time in the whole job.

    The passes that were timed are known. If n of N were, the error of their mean counts by the root
    of 1 - n / N, as in a sample of a finite population.
    """
    return error_of_mean(run.pass_seconds).times(math.sqrt(run.untimed_epochs / run.planned_epochs))


def mean_time(run: JobTimes, values: Sequence[float]) -> UncertainTime:
    """Return the mean of a run's steps or epochs in another process, or on a quiet machine."""
    time = UncertainTime(statistics.fmean(values))
    time = time.with_errors(machine_error(run), error_of_mean(values))
    return time.reaching(time.seconds / slowdown(run))


def machine_error(run: JobTimes) -> LogError:
    """Return how much the machine's speed differs between processes, by its jobs' readings."""
    if len(run.readings) < 3:
        return MACHINE
    freedom = MACHINE.freedom + len(run.readings)
    return LogError((MACHINE.freedom * MACHINE.variance + sum(run.readings)) / freedom, freedom)


def reading(run: JobTimes) -> float | None:
    """Return the variance of the speed that two processes of a job show, or None.

    Its epochs were measured in one and trained in another.
    """
    if run.epoch_by_parts is None or run.busy or run.step_warnings:
        return None
    measured, trained = run.epoch_by_parts.values, run.epoch_seconds
    within = sum(error_of_mean(each).variance for each in (measured, trained))
    if math.isinf(within):
        return None
    return squared_difference(run.epoch_by_parts.seconds, statistics.fmean(trained), within)


def squared_difference(seconds: float, other_seconds: float, within: float) -> float:
    """Return the variance of the speed by the times of two processes, without that within them.

    Half of the squared difference counts for each process.
    """
    return max(0.0, math.log(seconds / other_seconds) ** 2 - within) / 2
