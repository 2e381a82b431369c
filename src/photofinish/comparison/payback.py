"""When the GPU has made good its longer start-up, and how soon a training reaches an accuracy."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

import numpy as np
import pandas as pd

from photofinish.comparison.intervals import LEAST_VALUES, Interval, drawn_medians, new_draws, percentile_interval
from photofinish.comparison.speedups import run_margin
from photofinish.results.epochs import EpochTiming, passed_seconds
from photofinish.results.records import Timings


@dataclass(frozen=True)
class Payback:
    epochs: float
    """after which the GPU is ahead: 0 where it starts no later and is no slower, infinite where it never is"""
    interval: Interval | None
    """of what the epochs vary, and the ratio of two runs may be off; each start-up was measured once"""
    finding: str


@dataclass(frozen=True)
class TimeToTarget:
    target: float
    epoch: int | None
    """the first whose validation accuracy is that high; None where none is"""
    seconds: float | None
    """from the start of the process to the end of that epoch's validation"""
    share: float | None
    """of all the epochs' time"""
    best: float
    """the highest accuracy of any epoch"""


def payback(cpu: Timings, gpu: Timings) -> Payback:
    """By start-up, and the median epoch with its validation."""
    extra_seconds = gpu.startup_seconds - cpu.startup_seconds
    cpu_epochs, gpu_epochs = whole_epoch_seconds(cpu), whole_epoch_seconds(gpu)
    gain_seconds = statistics.median(cpu_epochs) - statistics.median(gpu_epochs)
    epochs = _epochs(extra_seconds, gain_seconds)
    fewest, interval = min(len(cpu_epochs), len(gpu_epochs)), None
    if fewest >= LEAST_VALUES:
        random = new_draws()
        drawn_cpu, drawn_gpu = drawn_medians(cpu_epochs, random), drawn_medians(gpu_epochs, random)
        margin = run_margin(cpu, gpu)
        soonest = [_epochs(extra_seconds, gain) for gain in (drawn_cpu * margin - drawn_gpu).tolist()]
        latest = [_epochs(extra_seconds, gain) for gain in (drawn_cpu / margin - drawn_gpu).tolist()]
        interval = percentile_interval(np.array(soonest))[0], percentile_interval(np.array(latest))[1]
    return Payback(epochs, interval, _finding(extra_seconds, gain_seconds, epochs, interval, fewest))


def time_to_target(timings: Timings, history: pd.DataFrame, target: float) -> TimeToTarget:
    """Of the first training; what lies between epochs (checkpoints, display) isn't counted."""
    accuracies = [float(accuracy) for accuracy in history["validation_accuracy"]]
    epoch = next((number for number, accuracy in enumerate(accuracies, 1) if accuracy >= target), None)
    if epoch is None:
        return TimeToTarget(target, None, None, None, max(accuracies))
    seconds = passed_seconds(timings.epochs[:epoch])
    share = seconds / passed_seconds(timings.epochs)
    return TimeToTarget(target, epoch, timings.startup_seconds + seconds, share, max(accuracies))


def whole_epoch_seconds(timings: Timings) -> list[float]:
    """Training and validation."""
    return [_whole(timing) for timing in timings.all_epochs]


def _whole(timing: EpochTiming) -> float:
    return timing.training_seconds + timing.validation_seconds


def _epochs(extra_seconds: float, gain_seconds: float) -> float:
    """From 0, where nothing is to be repaid. A GPU that starts sooner but has slower epochs isn't ahead for good."""
    if gain_seconds < 0:
        return math.inf
    if extra_seconds <= 0:
        return 0.0
    return extra_seconds / gain_seconds if gain_seconds else math.inf


def _finding(extra_seconds: float, gain_seconds: float, epochs: float, interval: Interval | None, fewest: int) -> str:
    if epochs == 0:
        told = "from the start: it starts no later than the CPU"
    elif math.isfinite(epochs):
        told = f"after {_count(math.ceil(epochs))}"
    elif extra_seconds < 0:
        sooner = math.floor(extra_seconds / gain_seconds)
        told = f"never for good: it starts sooner, and its slower epochs use that up after {_count(sooner)}"
    else:
        told = "never: its epochs are no shorter"
    if interval is None:
        return f"{told} (no interval: {_count(fewest)}, and it takes {LEAST_VALUES})"
    low, high = map(_bound, interval)
    return told if low == high else f"{told} (95 % interval {low} to {high})"


def _bound(epochs: float) -> str:
    """As the finding itself, at the end of an epoch."""
    return "never" if math.isinf(epochs) else f"{math.ceil(epochs):,}"


def _count(epochs: int) -> str:
    return f"{epochs:,} epoch{'' if epochs == 1 else 's'}"
