"""Times of a job, its epochs and its steps, with their errors."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from photofinish.answer.fair_cpu import least_seconds, slowdown
from photofinish.answer.uncertainty import MACHINE, ONCE, Interval, UncertainTime, error_of_mean
from photofinish.results.job_times import JobTimes


def job_interval(run: JobTimes) -> Interval:
    """Return the interval of the whole job's time."""
    return job_time(run).interval


def job_time(run: JobTimes, *, with_seeds: bool = False) -> UncertainTime:
    """Return the time of the whole job in a run that comes, or on a quiet machine."""
    passes_seconds = run.passes_seconds + (run.seeds_seconds if with_seeds else 0.0)
    if run.is_bound:
        return UncertainTime(run.once_seconds + passes_seconds, slower=math.inf)
    time = training_time(run, run.once_seconds, passes_seconds, error_of_passes(run))
    if run.may_stop_early:
        timed_share = 1 - run.untimed_epochs / run.planned_epochs
        time = time.reaching(run.once_seconds + timed_share * passes_seconds)
    return time.reaching(time.seconds * least_seconds(run) / run.whole_seconds)


def training_time(
    run: JobTimes, once_seconds: float, passes_seconds: float, of_passes: float
) -> UncertainTime:
    """Return the time of a training of any length: its start-up and its passes."""
    seconds = once_seconds + passes_seconds
    of_startup = ONCE * min(run.startup_seconds, once_seconds) / seconds
    time = UncertainTime(seconds, machine=MACHINE)
    return time.off_by(of_startup, of_passes * passes_seconds / seconds)


def error_of_passes(run: JobTimes) -> float:
    """Return the error of the passes' time in the whole job.

    The passes that were timed are known. If n of N were, the error of their mean counts by the root
    of 1 - n / N, as in a sample of a finite population.
    """
    if not run.untimed_epochs:
        return 0.0
    left = math.sqrt(run.untimed_epochs / run.planned_epochs)
    return left * math.hypot(error_of_mean(run.pass_seconds), ONCE * run.assumed_share)


def mean_time(run: JobTimes, values: Sequence[float]) -> UncertainTime:
    """Return the mean of a run's steps or epochs in another process, or on a quiet machine."""
    time = UncertainTime(statistics.fmean(values), machine=MACHINE).off_by(error_of_mean(values))
    return time.reaching(time.seconds / slowdown(run))
