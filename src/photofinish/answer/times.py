"""Times of a job, its epochs and its steps, with their errors."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from photofinish.answer.fair_cpu import fair_seconds, idle_seconds
from photofinish.answer.uncertainty import MACHINE, ONCE, UncertainTime, error_of_mean, total
from photofinish.results.job import Job


@dataclass(frozen=True)
class ByLoad:
    """Times of a job's next run: as busy as the machine was, and on an idle one."""

    busy: UncertainTime
    idle: UncertainTime
    is_busy: bool = False
    """False if both are those of a quiet machine."""
    is_known: bool = True
    """False if the idle machine's time is unknown: its low end is open."""

    @property
    def shown(self) -> UncertainTime:
        """Time as busy as now, without an interval unless the machine was quiet."""
        unknown = UncertainTime(self.busy.seconds, math.inf, math.inf)
        return unknown if self.is_busy else self.busy

    @property
    def idle_seconds(self) -> float | None:
        """Time on an idle machine, if it was busy and this is known."""
        return self.idle.seconds if self.is_busy and self.is_known else None


def time_by_load(run: Job, *, with_seeds: bool = False) -> ByLoad:
    """Return the times of the whole job."""
    time = _as_measured(run, with_seeds=with_seeds)
    if not run.busy:
        return ByLoad(time, time)
    seconds = idle_seconds(run)
    if seconds is None:
        return ByLoad(time, time.reaching(0.0), is_busy=True, is_known=False)
    idle = replace(time, seconds=time.seconds * seconds / run.whole_seconds)
    return ByLoad(time, idle, is_busy=True)


def total_by_load(times: Sequence[ByLoad]) -> ByLoad:
    """Return the time of all jobs of a sweep."""
    busy = total([time.busy for time in times])
    idle = total([time.idle for time in times])
    is_busy = any(time.is_busy for time in times)
    return ByLoad(busy, idle, is_busy, all(time.is_known for time in times))


def job_time(run: Job, *, with_seeds: bool = False) -> UncertainTime:
    """Return the job's time, without an interval on a busy machine."""
    return time_by_load(run, with_seeds=with_seeds).shown


def _as_measured(run: Job, *, with_seeds: bool) -> UncertainTime:
    passes_seconds = run.passes_seconds + (run.seeds_seconds if with_seeds else 0.0)
    if run.is_bound:
        return UncertainTime(run.once_seconds + passes_seconds, slower=math.inf)
    time = training_time(run, run.once_seconds, passes_seconds, error_of_passes(run))
    if run.may_stop_early:
        timed_share = 1 - run.untimed_epochs / run.epochs
        time = time.reaching(run.once_seconds + timed_share * passes_seconds)
    return time.reaching(time.seconds * fair_seconds(run) / run.whole_seconds)


def training_time(
    run: Job, once_seconds: float, passes_seconds: float, of_passes: float
) -> UncertainTime:
    """Return the time of a training of any length: its start-up and its passes."""
    seconds = once_seconds + passes_seconds
    of_startup = ONCE * min(run.startup_seconds, once_seconds) / seconds
    time = UncertainTime(seconds, machine=MACHINE)
    return time.off_by(of_startup, of_passes * passes_seconds / seconds)


def error_of_passes(run: Job) -> float:
    """Return the error of the passes' time in the whole job.

    The passes that were timed are known. If n of N were, the error of their mean counts by the root
    of 1 - n / N, as in a sample of a finite population.
    """
    if not run.untimed_epochs:
        return 0.0
    left, assumed_share = math.sqrt(run.untimed_epochs / run.epochs), 0.0
    if run.timed.unit == "step":  # validation was timed once, and is assumed to be equal in all
        assumed_share = run.validation_share / (1 + run.validation_share)
    return left * math.hypot(error_of_mean(run.pass_seconds), ONCE * assumed_share)


def mean_time(run: Job, values: Sequence[float]) -> UncertainTime:
    """Return the mean of steps or epochs, without an interval on a busy machine."""
    error = math.inf if run.busy else error_of_mean(values)
    return UncertainTime(statistics.fmean(values), machine=MACHINE).off_by(error)
