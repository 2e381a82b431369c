"""Speed-ups of the GPU over the CPU, the break-even number of epochs, and bounds for any GPU.

docs/method.md explains the bounds. Only work that must stay on the CPU counts: data loading per
epoch, as fast as without steps, and start-up for the job. Kernel launches, checkpoints and loading
for validation do not count, because they may shrink.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from photofinish.answer.fair_cpu import least_startup_seconds, slowdown_of_a_thread
from photofinish.answer.times import (
    MACHINE,
    ONCE,
    Interval,
    UncertainTime,
    error_of_mean,
    error_of_passes,
    job_time,
    log_ratio,
    mean_time,
    training_time,
)
from photofinish.results.job import Job

Kind = Literal["step", "epoch", "end_to_end"]
_NO_EPOCHS, _MOST_EPOCHS, _PRECISION = 1e-6, 1e9, 1e-9  # of a search that halves its interval


@dataclass(frozen=True)
class Speedup:
    kind: Kind
    cpu_seconds: float
    device_seconds: float
    ratio: float
    """CPU's time divided by the device's time: 2 means half the time."""
    interval: Interval | None
    """None if a device has a single value, or if its machine was busy."""

    @property
    def is_faster(self) -> bool | None:
        """True if the device is faster. None without an interval, or if the interval contains 1."""
        if self.interval is None or self.interval[0] <= 1 <= self.interval[1]:
            return None
        return self.interval[0] > 1


def speedups(cpu: Job, device: Job) -> dict[Kind, Speedup]:
    """Return the speed-ups of step, epoch and job. Only of the job if a run has no steps.

    Steps that were timed beside other programs have none.
    """
    if not (cpu.has_steps and device.has_steps):
        return {"end_to_end": job_speedup(cpu, device)}
    of_steps: dict[Kind, Speedup] = {}
    if not (cpu.has_busy_steps or device.has_busy_steps):
        steps = (mean_time(run, run.step_seconds) for run in (cpu, device))
        of_steps["step"] = _speedup("step", *steps)
    return of_steps | {
        "epoch": epoch_speedup(cpu, device),
        "end_to_end": job_speedup(cpu, device),
    }


def job_speedup(cpu: Job, device: Job) -> Speedup:
    """Return the speed-up of the whole job. Its interval needs no repeats."""
    return _speedup("end_to_end", job_time(cpu), job_time(device))


def epoch_speedup(cpu: Job, device: Job) -> Speedup:
    return _speedup("epoch", *(mean_time(run, run.epoch_seconds) for run in (cpu, device)))


def _speedup(kind: Kind, cpu: UncertainTime, device: UncertainTime) -> Speedup:
    interval = cpu.over(device)
    known = None if interval == (0.0, math.inf) else interval
    return Speedup(kind, cpu.seconds, device.seconds, cpu.seconds / device.seconds, known)


@dataclass(frozen=True)
class BreakEvenEpochs:
    """Number of epochs after which the GPU has made up for its longer start-up."""

    epochs: float
    """0 if the GPU starts no later and is no slower, infinite if it never catches up."""
    interval: Interval | None
    """Numbers of epochs with which the GPU's time may be the CPU's.

    None by a single epoch, or if a machine was busy.
    """


def break_even(cpu: Job, gpu: Job) -> BreakEvenEpochs:
    """Return from how many epochs the GPU's time, with its start-up, is at most the CPU's."""
    errors = [(run, error_of_mean(run.pass_seconds)) for run in (cpu, gpu)]

    def speedup(epochs: float) -> tuple[float, float, float]:
        """Return the speed-up of a job of this length, between the ends of its interval."""
        times = []
        for run, of_mean in errors:
            passes_seconds = epochs * run.passes_seconds / run.epochs
            times.append(training_time(run, run.startup_seconds, passes_seconds, of_mean))
        on_cpu, on_gpu = times
        low, high = on_cpu.over(on_gpu)
        return low, on_cpu.seconds / on_gpu.seconds, high

    most, epochs, fewest = (_least(speedup, end) for end in range(3))
    is_known = all(math.isfinite(of_mean) and not run.busy for run, of_mean in errors)
    return BreakEvenEpochs(epochs, (fewest, most) if is_known else None)


def _least(speedup: Callable[[float], tuple[float, ...]], end: int) -> float:
    """Return the number of epochs from which a speed-up is at least 1, or infinity."""
    low, high = _NO_EPOCHS, _MOST_EPOCHS
    if speedup(high)[end] < 1:
        return math.inf
    if speedup(low)[end] >= 1:
        return 0.0
    while high > (1 + _PRECISION) * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if speedup(middle)[end] >= 1 else (middle, high)
    return high


@dataclass(frozen=True)
class SpeedupBound:
    """Upper bound of a speed-up: the whole time divided by the time that must stay on the CPU."""

    whole_seconds: float
    """Whole time of the job, or of its mean epoch."""
    staying_seconds: float
    error: float

    @property
    def at_most(self) -> float:
        """Speed-up that no GPU exceeds, at the high end."""
        return self.as_measured * math.exp(self.error)

    @property
    def as_measured(self) -> float:
        """Speed-up if everything that need not stay on the CPU took no time."""
        seconds = self.staying_seconds
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
