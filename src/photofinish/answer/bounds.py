"""Bounds on speed-ups by the work that stays on the CPU.

docs/verdict.md explains them. Only work that must stay on the CPU counts: data loading per epoch,
as fast as without steps, and start-up for the job. Kernel launches, checkpoints and loading for
validation do not count, because they may shrink.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from photofinish.answer.diagnosis import NotKnown, why_not_known
from photofinish.answer.fair_cpu import (
    least_batch_seconds,
    least_startup_seconds,
    slowdown_of_a_thread,
)
from photofinish.answer.remedies import RUN_MARGIN
from photofinish.answer.result import Result
from photofinish.answer.step_costs import StepCosts, spread
from photofinish.config.experiment import LoaderInput, ResidentInput
from photofinish.results.job_times import JobTimes


@dataclass(frozen=True)
class SpeedupBound:
    """Upper bound of a speed-up: the whole time divided by the time that must stay on the CPU."""

    whole_seconds: float
    """Whole time of the job, or of its mean epoch."""
    staying_seconds: float
    """Lower estimate of the time that stays: fast batches and start-up CPU time, less a margin."""
    measured_seconds: float

    @property
    def at_most(self) -> float:
        """Speed-up that no GPU can exceed, even if other programs slowed this training."""
        return _without(self.whole_seconds, self.staying_seconds)

    @property
    def as_measured(self) -> float:
        """Speed-up if everything that need not stay on the CPU took no time."""
        return _without(self.whole_seconds, self.measured_seconds)


def _without(whole_seconds: float, staying_seconds: float) -> float:
    return max(1.0, whole_seconds / staying_seconds) if staying_seconds else math.inf


@dataclass(frozen=True)
class SpeedupBounds:
    """Upper bounds for one training on the CPU."""

    job: SpeedupBound
    epoch: SpeedupBound | None = None
    """None if no part of an epoch must stay on the CPU, or if that is not known."""
    loading_not_known: NotKnown | None = None
    """Reason why a loader's time is left out of the bounds, and why there are no estimates."""


def speedup_bounds(run: Result) -> SpeedupBounds:
    """Return the bounds of a training on the CPU. Without timed steps, only start-up counts."""
    if run.settings is None:
        return _bounds_by_waits(run)
    return _bounds_by_loading(run, run.settings.input)


def _bounds_by_waits(run: Result) -> SpeedupBounds:
    """Return a script's bounds, from its start-up and its waits for batches.

    If workers load ahead, a batch takes longer than the wait for it, so the true bound is lower.
    """
    timings, waiting_seconds = run.timings, run.waiting_seconds or (0.0,)
    margin = max(RUN_MARGIN, slowdown_of_a_thread(timings.load))
    least_seconds = spread(waiting_seconds)[0] / margin
    if not least_seconds:
        return SpeedupBounds(_startup_bound(timings))
    whole_seconds = statistics.fmean(timings.epoch_seconds)
    return _with_epoch(timings, whole_seconds, least_seconds, statistics.fmean(waiting_seconds))


def _bounds_by_loading(run: Result, settings: LoaderInput | ResidentInput) -> SpeedupBounds:
    """Return an experiment's bounds. On a busy machine, estimate the batches of a quiet machine."""
    timings, costs, not_known = run.timings, run.costs, why_not_known(run)
    startup = _startup_bound(timings)
    is_busy = not_known is not None and not_known.reason == "busy"
    if settings.name == "resident":
        return SpeedupBounds(startup)
    if timings.slow_batch_seconds and timings.steps_per_epoch:
        return _bounds_by_few_batches(timings, timings.steps_per_epoch)
    if costs is None or (not_known and not is_busy):
        return SpeedupBounds(startup, loading_not_known=not_known)
    loading_seconds = costs.steps_per_epoch * costs.batch_alone_seconds
    least_seconds = _least_loading_seconds(costs, settings.workers) / RUN_MARGIN
    if is_busy:
        least_seconds = min(least_seconds, costs.steps_per_epoch * least_batch_seconds(timings))
    measured = costs.epoch_seconds, least_seconds, loading_seconds
    # Loading was measured in another process than the whole job, which may have been faster.
    trained_share = statistics.fmean(timings.epoch_seconds) / costs.epoch_seconds
    if timings.busy:
        trained_share = min(1.0, trained_share)
    return _with_epoch(timings, *(seconds * trained_share for seconds in measured))


def _bounds_by_few_batches(timings: JobTimes, steps: int) -> SpeedupBounds:
    """Return the bounds of slow steps, of which only a few batches were loaded alone."""
    whole_seconds, alone = statistics.fmean(timings.epoch_seconds), timings.slow_batch_seconds
    loading_seconds = min(steps * statistics.fmean(alone), whole_seconds)
    margin = max(RUN_MARGIN, slowdown_of_a_thread(timings.load))
    least_seconds = min(steps * min(alone), whole_seconds) / margin
    return _with_epoch(timings, whole_seconds, least_seconds, loading_seconds)


def _startup_bound(timings: JobTimes) -> SpeedupBound:
    """Return a job's bound if only its start-up stays on the CPU."""
    least_seconds = least_startup_seconds(timings)
    if timings.startup_cpu_seconds is not None:
        least_seconds /= RUN_MARGIN
    return SpeedupBound(timings.whole_seconds, least_seconds, timings.startup_seconds)


def _with_epoch(
    timings: JobTimes, whole_seconds: float, staying_seconds: float, measured_seconds: float
) -> SpeedupBounds:
    """Return the bounds if the start-up and these times of every epoch's loading stay."""
    startup, epochs = _startup_bound(timings), timings.planned_epochs
    job = SpeedupBound(
        startup.whole_seconds,
        startup.staying_seconds + epochs * staying_seconds,
        startup.measured_seconds + epochs * measured_seconds,
    )
    return SpeedupBounds(job, SpeedupBound(whole_seconds, staying_seconds, measured_seconds))


def _least_loading_seconds(costs: StepCosts, workers: int) -> float:
    """Return an epoch's loading time if all batches are as fast as the fastest tenth.

    If the batches were loaded in two passes, the faster pass counts.
    """
    alone = costs.attribution.batch_alone_seconds
    waiting = costs.attribution.parts.waiting_seconds
    first_seconds = min(alone[0], waiting[0])
    passes = [alone] if costs.loads_ahead else [alone, waiting]
    rounds = [_rounds(values[1:] or (first_seconds,), max(1, workers)) for values in passes]
    least_seconds = min(spread(means)[0] for means in rounds)
    return max(first_seconds, least_seconds) + (costs.steps_per_epoch - 1) * least_seconds


def _rounds(values: Sequence[float], size: int) -> list[float]:
    """Return the means of `size` consecutive values each, or of all values if there are fewer.

    Batches from several workers arrive together, so only whole rounds show their speed.
    """
    starts = range(0, len(values) - size + 1, size)
    means = [statistics.fmean(values[start : start + size]) for start in starts]
    return means or [statistics.fmean(values)]
