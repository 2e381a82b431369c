"""Speed-ups of the GPU over the CPU with their intervals, break-even, energy and cost."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from photofinish.comparing.fair_cpu import (
    fewer_threads,
    least_epoch_seconds,
    least_startup_seconds,
    slow_kernels,
    slowdown,
    slowdown_of_a_thread,
)
from photofinish.config.compare import Comparing
from photofinish.machine.load import load_warnings
from photofinish.results import EpochMetrics, EpochTiming, passed_seconds
from photofinish.results.job_times import JobTimes
from photofinish.results.records import DeviceLabel

Kind = Literal["step", "epoch", "end_to_end"]
LEAST_VALUES = 5
"""Minimum number of values: with five, 9 of 10 intervals held the truth, with four, 87 of 100."""
HELD = 0.9
"""Share of intervals that contain the true value."""
RUN_TO_RUN = 1.05
"""Factor by which all times of a run may be off together.

A training was compared with itself 100 times on an idle machine. Without this factor, up to 25
comparisons found a false winner, with it at most 3.
"""
ONCE = 1.3
"""Factor by which the time outside the epochs may be off, mainly the start-up.

Twelve starts in a row differed by up to 1.09 on a quiet machine.
"""
_RESAMPLES = 2000
SECONDS_AN_HOUR = 3600.0

Interval = tuple[float, float]
FloatArray = NDArray[np.float64]


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
    steps = cpu.steady_state.step_seconds, device.steady_state.step_seconds
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
    cpu_seconds, device_seconds = _job_seconds(cpu), _job_seconds(device)
    values = min(len(run.end_to_end_seconds) for run in (cpu, device))
    ratio = cpu_seconds / device_seconds
    return Speedup("end_to_end", cpu_seconds, device_seconds, ratio, interval, values)


def _job_seconds(run: JobTimes) -> float:
    """Return the job's time: the median of repeats, or the mean of a sample's parts."""
    is_sample = run.sampled_steps is not None
    return run.whole_seconds if is_sample else statistics.median(run.end_to_end_seconds)


def job_interval(run: JobTimes) -> Interval:
    """Return the interval of the whole job's time."""
    return widened(job_spread(run))


def job_spread(run: JobTimes, seed: int = 0) -> Interval:
    """Return the times of a fast and a slow run of the job on a quiet machine.

    In addition, both may be off by `RUN_TO_RUN`. For a busy machine, the fast run is as fast as if
    no program had slowed it. If fewer threads were faster, the fast run uses them. With slow
    kernels, it computes in fp32.
    """
    once_seconds, epochs = run.once_seconds, run.planned_epochs
    # Without the interruptions, a resumed training would have started only once.
    least_once_seconds = once_seconds - len(run.resumed_at_epochs) * run.startup_seconds
    passes = [seconds - once_seconds for seconds in run.end_to_end_seconds]
    low = high = statistics.median(passes)
    has_parts = bool(run.sampled_steps and run.repeats)
    if has_parts:
        low, high = _mean_interval(*passes)
    elif len(passes) >= LEAST_VALUES:
        low, high = percentile_interval(drawn_medians(passes, seed))
    if run.epochs_left and not has_parts:
        fast, slow = _extrapolated(run)
        low, high = min(low, fast), max(high, slow)
    if load_warnings(run.load):
        each = [passed_seconds([epoch]) for epoch in run.all_epochs]
        fast, slow = np.quantile(each, [0.1, 0.9]) * epochs
        factor = slowdown(run)
        # Fast epochs were slowed too, unless the least time of an epoch is known.
        fast = fast if least_epoch_seconds(run) else fast / factor
        low, high = min(low / factor, float(fast)), max(high, float(slow))
        after_seconds = (least_once_seconds - run.startup_seconds) / slowdown_of_a_thread(run.load)
        least_once_seconds = least_startup_seconds(run) + max(0.0, after_seconds)
    if fair := [each.job_seconds for each in (fewer_threads(run), slow_kernels(run)) if each]:
        low = max(0.0, low - (run.whole_seconds - min(fair)))
    return max(0.0, least_once_seconds) / ONCE + low, once_seconds * ONCE + high


def _mean_interval(mean: float, *parts: float) -> Interval:
    """Return the interval of a mean by Student's t. A single part does not bound it above."""
    if len(parts) == 1:
        return 0.0, math.inf
    half = students_t(len(parts) - 1) * statistics.stdev(parts) / math.sqrt(len(parts))
    return max(0.0, mean - half), mean + half


def _extrapolated(run: JobTimes) -> Interval:
    """Return the interval of all epochs' time, from the trained epochs by Student's t."""
    each = [passed_seconds([epoch]) for epoch in run.all_epochs]
    trained, left = len(each), run.epochs_left
    middle = passed_seconds(run.epochs) + run.left_seconds(run.epochs)
    error = left * statistics.stdev(each) * math.sqrt(1 / trained + 1 / left)
    half = students_t(trained - 1) * error
    return max(passed_seconds(run.epochs), middle - half), middle + half


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


@dataclass(frozen=True)
class TimeToTarget:
    target: float
    epoch: int | None
    seconds: float | None
    """Time from the start of the process to the end of the epoch's validation."""
    best: float


@dataclass(frozen=True)
class EnergyUsed:
    joules: float | None
    status: Literal["measured", "unavailable"]
    counted: str
    """Source of the figure, or reason for a missing figure. A column of comparison.csv."""


@dataclass(frozen=True)
class Cost:
    amount: float | None
    counted: str
    """Parts of the sum, or reason for a missing sum. A column of comparison.csv."""


@dataclass(frozen=True)
class ResourceUse:
    energy: EnergyUsed
    cost: Cost
    currency: str
    target: TimeToTarget | None = None
    cost_to_target: Cost | None = None


def break_even(cpu: JobTimes, gpu: JobTimes) -> BreakEvenEpochs:
    extra_seconds = gpu.startup_seconds - cpu.startup_seconds
    cpu_epochs = [passed_seconds([epoch]) for epoch in cpu.all_epochs]
    gpu_epochs = [passed_seconds([epoch]) for epoch in gpu.all_epochs]
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


def resource_use(
    device: DeviceLabel, timings: JobTimes, history: Sequence[EpochMetrics], settings: Comparing
) -> ResourceUse:
    """Return energy of the training, and its cost in total and up to the target accuracy.

    A script has no history, so it has no target.
    """
    energy, currency = energy_used(device, timings), settings.prices.currency
    whole = cost(device, timings.total_seconds, settings)
    accuracy = settings.target_accuracy
    if accuracy is None or not history or history[0].validation_accuracy is None:
        return ResourceUse(energy, whole, currency)
    target = time_to_target(history, timings.epochs, timings.startup_seconds, accuracy)
    if target.seconds is None:
        return ResourceUse(energy, whole, currency, target)
    return ResourceUse(energy, whole, currency, target, cost(device, target.seconds, settings))


def time_to_target(
    history: Sequence[EpochMetrics],
    epochs: Sequence[EpochTiming],
    startup_seconds: float,
    target: float,
) -> TimeToTarget:
    """Return the time to the first epoch with the target's validation accuracy.

    Time between epochs is not counted.
    """
    accuracies = [epoch.validation_accuracy or 0.0 for epoch in history]
    best = max(accuracies)
    if best < target:
        return TimeToTarget(target, None, None, best)
    epoch = next(number for number, value in enumerate(accuracies, 1) if value >= target)
    return TimeToTarget(target, epoch, startup_seconds + passed_seconds(epochs[:epoch]), best)


def time_to_lowest_loss(
    history: Sequence[EpochMetrics], epochs: Sequence[EpochTiming], startup_seconds: float
) -> tuple[int, float]:
    """Return the epoch with the lowest validation loss, from 1, and the time to its end."""
    losses = [loss for epoch in history if (loss := epoch.validation_loss) is not None]
    epoch = 1 + losses.index(min(losses))
    return epoch, startup_seconds + passed_seconds(epochs[:epoch])


def energy_used(device: DeviceLabel, timings: JobTimes) -> EnergyUsed:
    """Return the GPU's energy from its counter."""
    meter = next((part for part in timings.energy if part.of == device), None)
    if device == "gpu" and meter and meter.joules is not None:
        return EnergyUsed(meter.joules, "measured", "the GPU (NVML)")
    reason = (meter.reason if meter else None) or "not recorded"
    if device == "cpu":
        reason = "a CPU's energy is not measured"
    return EnergyUsed(None, "unavailable", reason)


def cost(device: DeviceLabel, seconds: float, settings: Comparing) -> Cost:
    """Return the price of the time."""
    prices = settings.prices
    hour_price = prices.cpu_hour if device == "cpu" else prices.gpu_hour
    if hour_price is None:
        return Cost(None, f"no price of an hour (compare.prices.{device}_hour)")
    return Cost(seconds / SECONDS_AN_HOUR * hour_price, "time")


def run_margins(cpu: JobTimes, device: JobTimes) -> Interval:
    """Return the factors by which the ratio of two runs may be too high, and too low.

    Other programs can only make a run longer, so each run's load moves one end.
    """
    return RUN_TO_RUN * slowdown(cpu), RUN_TO_RUN * slowdown(device)


def widened(interval: Interval, margins: Interval = (RUN_TO_RUN, RUN_TO_RUN)) -> Interval:
    """Divide the lower end by its margin, and multiply the upper end by its margin."""
    (low, high), (too_high, too_low) = interval, margins
    return low / too_high, high * too_low


def ratio_interval(above: Sequence[float], below: Sequence[float]) -> Interval | None:
    """Return the bootstrap interval of a ratio of medians, or None with too few values."""
    if min(len(above), len(below)) < LEAST_VALUES:
        return None
    return percentile_interval(drawn_medians(above, 0) / drawn_medians(below, 1))


def students_t(freedom: int) -> float:
    """Return the half width of a mean's interval, in standard errors."""
    return float(stdtrit(freedom, (1 + HELD) / 2))


def drawn_medians(values: Sequence[float], seed: int) -> FloatArray:
    """Return the medians of 2,000 draws of the values with replacement.

    Use different seeds for values that are compared, because equal seeds give equal draws.
    """
    count = len(values)
    places = np.random.default_rng(seed).integers(count, size=(_RESAMPLES, count))
    medians: FloatArray = np.median(np.sort(values)[places], axis=1)
    return medians


def percentile_interval(drawn: FloatArray) -> Interval:
    """Return the interval of the middle 90 % of draws, which may contain infinities."""
    ends = [(1 - HELD) / 2, (1 + HELD) / 2]
    low, high = np.quantile(drawn, ends, method="inverted_cdf")
    return float(low), float(high)
