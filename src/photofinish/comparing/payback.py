"""When the GPU has made good its longer start-up; what a training took in time, energy and money."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from photofinish.comparing.speedups import (
    LEAST_VALUES,
    Interval,
    drawn_medians,
    percentile_interval,
    run_margin,
)
from photofinish.params.compare import Comparing
from photofinish.results import EpochMetrics, EpochTiming, passed_seconds
from photofinish.results.records import DeviceLabel, Timings

SECONDS_AN_HOUR = 3600.0
JOULES_A_KILOWATT_HOUR = 3.6e6
_COUNTED = {"gpu": "the GPU (NVML)", "cpu": "the whole CPU package (RAPL)"}


@dataclass(frozen=True)
class Payback:
    """When the GPU's shorter epochs have made up for its longer start-up."""

    epochs: float
    """after which the GPU is ahead: 0 where it starts no later and is no slower, infinite where it never is"""
    interval: Interval | None
    """of what the epochs vary, and the ratio of two runs may be off; each start-up was measured once"""
    finding: str


@dataclass(frozen=True)
class TimeToTarget:
    """How soon an accuracy was reached."""

    target: float
    epoch: int | None
    """the first whose validation accuracy is that high; None where none is"""
    seconds: float | None
    """from the start of the process to the end of that epoch's validation"""
    share: float | None
    """of all the epochs' time"""
    best: float
    """the highest accuracy of any epoch"""


@dataclass(frozen=True)
class EnergyUsed:
    """From the first epoch's start to the last one's end; start-up is not in it."""

    joules: float | None
    status: Literal["measured", "estimated", "unavailable"]
    counted: str
    """of what it is the sum; where there is none, why"""


@dataclass(frozen=True)
class Cost:
    """In the currency of the settings."""

    amount: float | None
    counted: str
    """of what it is the sum; where there is none, why"""


@dataclass(frozen=True)
class Outlay:
    """What one training took."""

    energy: EnergyUsed
    cost: Cost
    currency: str
    target: TimeToTarget | None = None
    """None where the settings name none"""
    joules_to_target: float | None = None
    """the epochs' share of the energy by their share of the time"""
    cost_to_target: Cost | None = None


def payback(cpu: Timings, gpu: Timings) -> Payback:
    """By start-up, and the median epoch with its validation."""
    extra_seconds = gpu.startup_seconds - cpu.startup_seconds
    cpu_epochs, gpu_epochs = ([passed_seconds([epoch]) for epoch in side.all_epochs] for side in (cpu, gpu))
    gain_seconds = statistics.median(cpu_epochs) - statistics.median(gpu_epochs)
    epochs, fewest = _epochs(extra_seconds, gain_seconds), min(len(cpu_epochs), len(gpu_epochs))
    if not epochs:
        told = "from the start: it starts no later than the CPU"
    elif math.isfinite(epochs):
        told = f"after {_count(math.ceil(epochs))}"
    elif extra_seconds >= 0:
        told = "never: its epochs are no shorter"
    else:
        sooner = _count(math.floor(extra_seconds / gain_seconds))
        told = f"never for good: it starts sooner, and its slower epochs use that up after {sooner}"
    if fewest < LEAST_VALUES:
        return Payback(epochs, None, f"{told} (no interval: {_count(fewest)}, and it takes {LEAST_VALUES})")
    drawn_cpu, drawn_gpu, margin = drawn_medians(cpu_epochs, 0), drawn_medians(gpu_epochs, 1), run_margin(cpu, gpu)
    _, most_seconds = percentile_interval(drawn_cpu * margin - drawn_gpu)
    least_seconds, _ = percentile_interval(drawn_cpu / margin - drawn_gpu)
    interval = _epochs(extra_seconds, most_seconds), _epochs(extra_seconds, least_seconds)
    low, high = ("never" if math.isinf(end) else f"{math.ceil(end):,}" for end in interval)  # as told: whole epochs
    return Payback(epochs, interval, told if low == high else f"{told} (95 % interval {low} to {high})")


def _epochs(extra_seconds: float, gain_seconds: float) -> float:
    """From 0, where nothing is to be repaid. A GPU that starts sooner but has slower epochs isn't ahead for good."""
    if gain_seconds < 0:
        return math.inf
    if extra_seconds <= 0:
        return 0.0
    return extra_seconds / gain_seconds if gain_seconds else math.inf


def _count(epochs: int) -> str:
    return f"{epochs:,} epoch{'' if epochs == 1 else 's'}"


def outlay(device: DeviceLabel, timings: Timings, history: Sequence[EpochMetrics], settings: Comparing) -> Outlay:
    """Energy and cost of the whole training, and up to the accuracy that the settings name."""
    energy, currency = energy_used(device, timings, settings), settings.prices.currency
    machines = timings.host.nodes  # each has its price
    whole = cost(device, timings.total_seconds * machines, energy.joules, settings)
    if settings.target_accuracy is None or history[0].validation_accuracy is None:
        return Outlay(energy, whole, currency)
    target = time_to_target(history, timings.epochs, timings.startup_seconds, settings.target_accuracy)
    if target.seconds is None or target.share is None:
        return Outlay(energy, whole, currency, target)
    joules = None if energy.joules is None else energy.joules * target.share
    return Outlay(energy, whole, currency, target, joules, cost(device, target.seconds * machines, joules, settings))


def time_to_target(
    history: Sequence[EpochMetrics], epochs: Sequence[EpochTiming], startup_seconds: float, target: float
) -> TimeToTarget:
    """By each epoch's validation accuracy; what lies between epochs (checkpoints, display) isn't counted."""
    accuracies = [epoch.validation_accuracy or 0.0 for epoch in history]
    epoch = next((number for number, accuracy in enumerate(accuracies, 1) if accuracy >= target), None)
    if epoch is None:
        return TimeToTarget(target, None, None, None, max(accuracies))
    seconds = passed_seconds(epochs[:epoch])
    return TimeToTarget(target, epoch, startup_seconds + seconds, seconds / passed_seconds(epochs), max(accuracies))


def energy_used(device: DeviceLabel, timings: Timings, settings: Comparing) -> EnergyUsed:
    """Measured, a GPU's with the CPU that fed it where that has a counter; else by the power that the settings give."""
    parts = {part.of: part for part in timings.energy}
    own = parts.pop(device, None)
    if own and own.joules is not None:
        known = [own, *(part for part in parts.values() if part.joules is not None)]
        counted = [" and ".join(_COUNTED[part.of] for part in known)]
        counted += [f"not {_COUNTED[part.of]}: {part.reason}" for part in parts.values() if part.joules is None]
        return EnergyUsed(sum(part.joules or 0.0 for part in known), "measured", "; ".join(counted))
    watts = settings.watts.cpu if device == "cpu" else settings.watts.gpu
    if watts is not None:
        estimated = f"{watts:g} W (compare.watts.{device}) times the epochs' time"
        return EnergyUsed(watts * passed_seconds(timings.epochs), "estimated", estimated)
    reason = own.reason if own and own.reason else "not recorded"
    return EnergyUsed(None, "unavailable", f"{reason}; compare.watts.{device} would give an estimate")


def cost(device: DeviceLabel, seconds: float, joules: float | None, settings: Comparing) -> Cost:
    """Of so much time on one machine, start-up included, and of so much energy where that has a price of its own."""
    prices = settings.prices
    hour_price = prices.cpu_hour if device == "cpu" else prices.gpu_hour
    amounts = {}
    if hour_price is not None:
        amounts["time"] = seconds / SECONDS_AN_HOUR * hour_price
    if prices.kilowatt_hour is not None and joules is not None:
        amounts["energy"] = joules / JOULES_A_KILOWATT_HOUR * prices.kilowatt_hour
    unknown = ["its energy being unknown"] if prices.kilowatt_hour is not None and joules is None else []
    if not amounts:
        return Cost(None, ", ".join([f"no price of an hour (compare.prices.{device}_hour)", *unknown]))
    return Cost(sum(amounts.values()), ", ".join([" and ".join(amounts), *unknown]))
