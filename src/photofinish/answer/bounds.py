"""Bounds on speed-ups by the work that stays on the CPU.

docs/method.md explains them. Only work that must stay on the CPU counts: data loading per epoch,
as fast as without steps, and start-up for the job. Kernel launches, checkpoints and loading for
validation do not count, because they may shrink.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from photofinish.answer.fair_cpu import least_startup_seconds, slowdown_of_a_thread
from photofinish.answer.times import MACHINE, ONCE, error_of_mean, error_of_passes, log_ratio
from photofinish.results.job import Job


@dataclass(frozen=True)
class SpeedupBound:
    """Upper bound of a speed-up: the whole time divided by the time that must stay on the CPU."""

    whole_seconds: float
    """Whole time of the job, or of its mean epoch."""
    measured_seconds: float
    error: float

    @property
    def at_most(self) -> float:
        """Speed-up that no GPU exceeds, at the high end."""
        return self.as_measured * math.exp(self.error)

    @property
    def as_measured(self) -> float:
        """Speed-up if everything that need not stay on the CPU took no time."""
        seconds = self.measured_seconds
        return max(1.0, self.whole_seconds / seconds) if seconds else math.inf


@dataclass(frozen=True)
class SpeedupBounds:
    """Upper bounds for one training on the CPU."""

    job: SpeedupBound
    epoch: SpeedupBound | None = None
    """None if no part of an epoch must stay on the CPU."""


class _Loading(NamedTuple):
    """Loading of an epoch, which stays on the CPU."""

    epoch_seconds: float
    seconds: float
    least_seconds: float
    """Least time on a quiet machine."""
    error: float


def speedup_bounds(run: Job) -> SpeedupBounds:
    """Return the bounds of a training on the CPU. Without timed steps, only start-up counts."""
    loading, of_passes = _loading(run), error_of_passes(run)
    seconds = startup_seconds = run.startup_seconds
    least_seconds = least_startup_seconds(run) if run.busy else startup_seconds
    epoch, of_loading = None, 0.0
    if loading:
        epoch = _bound(*loading[:3], loading.error, of_passes)
        seconds += run.epochs * loading.seconds
        least_seconds += run.epochs * loading.least_seconds
        of_loading = loading.error * (1 - startup_seconds / seconds)
    # A start-up is in both times, so that its error counts by the rest of the job.
    rest_share = max(0.0, 1 - seconds / run.whole_seconds)
    of_startup = ONCE * rest_share * startup_seconds / seconds if seconds else 0.0
    errors = of_loading, of_startup, rest_share and of_passes * rest_share
    job = _bound(run.whole_seconds, seconds, least_seconds, *errors)
    return SpeedupBounds(job, epoch)


def _bound(
    whole_seconds: float, seconds: float, least_seconds: float, *errors: float
) -> SpeedupBound:
    """Return a bound that reaches up to the one by the least time that stays."""
    rest_seconds, further = max(0.0, whole_seconds - seconds), 0.0
    if least_seconds < seconds:
        at_most = 1 + rest_seconds / least_seconds if least_seconds else math.inf
        further = log_ratio(at_most, 1 + rest_seconds / seconds)
    return SpeedupBound(whole_seconds, seconds, math.hypot(*errors, further))


def _loading(run: Job) -> _Loading | None:
    """Return an epoch's loading, or None if none stays.

    If a script's workers load ahead, a batch takes longer than the wait for it, so the true bound
    is lower.
    """
    settings, seconds = run.settings, run.loading_seconds
    if not seconds or (settings and settings.workers is None):
        return None
    waits = run.by_parts.waiting_seconds if run.by_parts else ()
    epoch_seconds, factor = run.mean_epoch_seconds, 1.0
    error = error_of_mean(waits) if len(waits) > 1 else ONCE
    if settings:  # it was measured in another process than the whole job, which may be faster
        factor = epoch_seconds / run.measured_epoch_seconds
        factor = min(1.0, factor) if run.busy else factor
        epoch_seconds = factor * run.measured_epoch_seconds
        error = error if run.loads_itself else math.hypot(MACHINE, error)
    seconds = min(epoch_seconds, factor * seconds)
    load = run.measured_load if settings else run.load
    return _Loading(epoch_seconds, seconds, seconds / slowdown_of_a_thread(load), error)
