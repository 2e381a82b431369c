"""Speed-ups of the GPU over the CPU with their intervals, and the break-even number of epochs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from photofinish.answer.fair_cpu import slowdown
from photofinish.answer.times import (
    LEAST_VALUES,
    RUN_TO_RUN,
    Interval,
    drawn_medians,
    job_spread,
    percentile_interval,
    widened,
)
from photofinish.results.job_times import JobTimes

Kind = Literal["step", "epoch", "end_to_end"]


@dataclass(frozen=True)
class Speedup:
    kind: Kind
    cpu_seconds: float
    device_seconds: float
    ratio: float
    """CPU's time divided by the device's time: 2 means half the time."""
    interval: Interval | None
    values: int
    """Number of values on the side with fewer values."""

    @property
    def is_faster(self) -> bool | None:
        """True if the device is faster. None without an interval, or if the interval contains 1."""
        if self.interval is None or self.interval[0] <= 1 <= self.interval[1]:
            return None
        return self.interval[0] > 1


def speedups(cpu: JobTimes, device: JobTimes) -> dict[Kind, Speedup]:
    margins = run_margins(cpu, device)
    steps = cpu.step_seconds, device.step_seconds
    return {
        "step": _speedup("step", *steps, margins),
        "epoch": epoch_speedup(cpu, device),
        "end_to_end": job_speedup(cpu, device),
    }


def job_speedup(cpu: JobTimes, device: JobTimes) -> Speedup:
    """Return the speed-up of the whole job. Its interval needs no repeats."""
    (fast_cpu, slow_cpu), (fast_device, slow_device) = job_spread(cpu), job_spread(device, 1)
    most = slow_cpu / fast_device if fast_device else math.inf
    interval = widened((fast_cpu / slow_device, most))
    cpu_seconds, device_seconds = (
        statistics.median(run.end_to_end_seconds) for run in (cpu, device)
    )
    values = min(len(run.end_to_end_seconds) for run in (cpu, device))
    ratio = cpu_seconds / device_seconds
    return Speedup("end_to_end", cpu_seconds, device_seconds, ratio, interval, values)


def epoch_speedup(cpu: JobTimes, device: JobTimes) -> Speedup:
    margins = run_margins(cpu, device)
    return _speedup("epoch", cpu.epoch_seconds, device.epoch_seconds, margins)


def _speedup(kind: Kind, cpu: list[float], device: list[float], margins: Interval) -> Speedup:
    cpu_seconds, device_seconds = statistics.median(cpu), statistics.median(device)
    interval = ratio_interval(cpu, device)
    if interval:
        interval = widened(interval, margins)
    ratio, values = cpu_seconds / device_seconds, min(len(cpu), len(device))
    return Speedup(kind, cpu_seconds, device_seconds, ratio, interval, values)


@dataclass(frozen=True)
class BreakEvenEpochs:
    """Number of epochs after which the GPU has made up for its longer start-up."""

    epochs: float
    """0 if the GPU starts no later and is no slower, infinite if it never catches up."""
    interval: Interval | None
    """Interval from the variation of epochs and runs. Each start-up was measured only once."""
    values: int


def break_even(cpu: JobTimes, gpu: JobTimes) -> BreakEvenEpochs:
    extra_seconds = gpu.startup_seconds - cpu.startup_seconds
    cpu_epochs, gpu_epochs = cpu.pass_seconds, gpu.pass_seconds
    epochs = _epochs(extra_seconds, statistics.median(cpu_epochs) - statistics.median(gpu_epochs))
    values, interval = min(len(cpu_epochs), len(gpu_epochs)), None
    if values >= LEAST_VALUES:
        too_high, too_low = run_margins(cpu, gpu)
        drawn_cpu, drawn_gpu = drawn_medians(cpu_epochs, 0), drawn_medians(gpu_epochs, 1)
        _, most_seconds = percentile_interval(drawn_cpu * too_low - drawn_gpu)
        least_seconds, _ = percentile_interval(drawn_cpu / too_high - drawn_gpu)
        interval = _epochs(extra_seconds, most_seconds), _epochs(extra_seconds, least_seconds)
    return BreakEvenEpochs(epochs, interval, values)


def _epochs(extra_seconds: float, gain_seconds: float) -> float:
    """Return the epochs that repay a longer start-up: infinity if epochs are slower, 0 if none."""
    if gain_seconds < 0:
        return math.inf
    if extra_seconds <= 0:
        return 0.0
    return extra_seconds / gain_seconds if gain_seconds else math.inf


def run_margins(cpu: JobTimes, device: JobTimes) -> Interval:
    """Return the factors by which the ratio of two runs may be too high, and too low.

    Other programs can only make a run longer, so each run's load moves one end.
    """
    return RUN_TO_RUN * slowdown(cpu), RUN_TO_RUN * slowdown(device)


def ratio_interval(above: Sequence[float], below: Sequence[float]) -> Interval | None:
    """Return the bootstrap interval of a ratio of medians, or None with too few values."""
    if min(len(above), len(below)) < LEAST_VALUES:
        return None
    return percentile_interval(drawn_medians(above, 0) / drawn_medians(below, 1))
