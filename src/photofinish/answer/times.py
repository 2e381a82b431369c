"""Times of a job, its epochs and its steps. They are uncertain.

Each error is the logarithm of a factor that nine in ten stay within. Errors with different causes
are independent, so they add as squares, each by its share of the time:

* the mean of the timed epochs, if others are left (`error_of_mean`)
* what was timed once, such as the start-up (`ONCE`)
* the machine, by which two runs of one job differ (`MACHINE`)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean, stdev

from photofinish.answer.fair_cpu import fair_seconds, idle_seconds
from photofinish.results.job import Job

MACHINE = math.log(1.2)
"""Difference between two runs of one job on one machine.

Nine in ten of 15 pairs of runs differed by less: 1.17 to 1.34 for three jobs on a machine whose
speed drifts, 1.1 in a quiet hour. If it is too small, intervals miss the next run.
"""
ONCE = math.log(1.3)
"""Error of a start-up or a validation that was timed once, by hand.

Twelve starts in a row differed by up to 1.09 on a quiet machine.
"""
_BATCHES, _DRIFT = 6, 1.5
"""Means of consecutive values, and the factor by which drift makes them less sure, by hand.

With it, intervals of simulated jobs held 94 to 98 % of means of white noise, and most of drift.
"""
_STUDENT = {2: 6.3, 3: 2.9, 4: 2.4, 5: 2.1, 6: 2.0}
"""Student's quantiles of 95 % for means, by the number of values."""

Interval = tuple[float, float]


def error_of_mean(values: Sequence[float]) -> float:
    """Return the error of the mean of values in the order of time, which may drift.

    It is that of up to six means of consecutive values. A single value has no known error.
    """
    if len(values) < 2:
        return math.inf
    count = min(_BATCHES, len(values))
    ends = [round(index * len(values) / count) for index in range(count + 1)]
    means = [fmean(values[low:high]) for low, high in pairwise(ends)]
    return _DRIFT * _STUDENT[count] * stdev(means) / math.sqrt(count) / fmean(means)


@dataclass(frozen=True)
class UncertainTime:
    """Time that may be shorter by one error, and longer by another."""

    seconds: float
    faster: float = 0.0
    slower: float = 0.0
    machine: float = 0.0
    """Difference between two runs, if it was timed on a machine."""

    @property
    def interval(self) -> Interval:
        """Interval of the time of a run that comes."""
        low = math.hypot(self.faster, self.machine)
        high = math.hypot(self.slower, self.machine)
        return self.seconds * math.exp(-low), self.seconds * math.exp(high)

    def off_by(self, *errors: float) -> UncertainTime:
        """Return this time with further errors in both directions."""
        faster = math.hypot(self.faster, *errors)
        slower = math.hypot(self.slower, *errors)
        return replace(self, faster=faster, slower=slower)

    def reaching(self, least_seconds: float) -> UncertainTime:
        """Return this time with an interval that reaches down to another time."""
        further = max(0.0, log_ratio(self.seconds, least_seconds))
        return replace(self, faster=math.hypot(self.faster, further))

    def over(self, other: UncertainTime) -> Interval:
        """Return the interval of the ratio of two usual times.

        Two runs differ as their machines' speeds both do, so each side has the root of a half.
        """
        ratio = self.seconds / other.seconds
        machines = math.hypot(self.machine, other.machine) / math.sqrt(2)
        low = math.hypot(self.faster, other.slower, machines)
        high = math.hypot(self.slower, other.faster, machines)
        return ratio * math.exp(-low), ratio * math.exp(high)

    def minus(self, other: UncertainTime) -> Interval:
        """Return the interval of the difference of two runs that come (Zou and Donner, 2008)."""
        (low, high), (least, most) = self.interval, other.interval
        middle = self.seconds - other.seconds
        below = math.hypot(self.seconds - low, most - other.seconds)
        return middle - below, middle + math.hypot(high - self.seconds, other.seconds - least)


def total(times: Sequence[UncertainTime]) -> UncertainTime:
    """Return the sum of times whose errors have one cause, such as the machine: their ends add."""
    seconds = sum(time.seconds for time in times)
    least_seconds = sum(time.seconds * math.exp(-time.faster) for time in times)
    most_seconds = sum(time.seconds * math.exp(time.slower) for time in times)
    machine = sum(time.seconds * time.machine for time in times) / seconds
    faster = log_ratio(seconds, least_seconds)
    slower = log_ratio(most_seconds, seconds)
    return UncertainTime(seconds, faster, slower, machine)


def log_ratio(one_seconds: float, other_seconds: float) -> float:
    """Return the logarithm of a ratio, which is infinite over no time."""
    return math.log(one_seconds / other_seconds) if other_seconds else math.inf


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
        """Time as busy as when measured, without an interval unless the machine was quiet."""
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
    return UncertainTime(fmean(values), machine=MACHINE).off_by(error)
