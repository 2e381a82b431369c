"""Speed-ups of the GPU over the CPU with their intervals, and the break-even number of epochs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from photofinish.answer.times import (
    Interval,
    UncertainTime,
    error_of_mean,
    job_time,
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
    """Return the speed-ups of step, epoch and job. Only of the job if a run has no steps."""
    if not (cpu.has_steps and device.has_steps):
        return {"end_to_end": job_speedup(cpu, device)}
    steps = (mean_time(run, run.step_seconds) for run in (cpu, device))
    return {
        "step": _speedup("step", *steps),
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
