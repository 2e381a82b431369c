"""The three speed-ups of the GPU over the CPU, never mixed up, and how sure each is; from which epoch on they have made
up for its longer start-up; and what a training took in energy and money, in all and up to the accuracy aimed at.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from photofinish.config.compare import Comparing
from photofinish.machine.load import load_warnings
from photofinish.results import EpochMetrics, EpochTiming, passed_seconds
from photofinish.results.records import DeviceLabel, Timings

Kind = Literal["step", "epoch", "end_to_end"]
NAMES: dict[Kind, str] = {
    "step": "a step, its data at hand",
    "epoch": "an epoch with its data",
    "end_to_end": "end to end, start-up included",
}
LEAST_VALUES = 5
"""on each side: with fewer, an interval that says 95 % holds the truth less often (9 times in 10 with three)"""
RUN_TO_RUN = 1.05
"""How much a run's times may be off as a whole, in a way that its own epochs don't tell: of one training compared with
itself 100 times on an idle machine, up to 25 were false winners without it, and at most 3 with it."""
BUSY = 2.0
"""the same where the machine had other things to do: they may have taken half of the speed, of either side"""
_MOST_SHARE_OF_ONCE = 0.5
"""of the whole job; above, an interval of the rest would claim to know what was measured once"""
_RESAMPLES = 2000
_STUDENTS_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
SECONDS_AN_HOUR = 3600.0
JOULES_A_KILOWATT_HOUR = 3.6e6
_COUNTED = {"gpu": "the GPU (NVML)", "cpu": "the whole CPU package (RAPL)"}

Interval = tuple[float, float]
FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Speedup:
    """Speed-up over the CPU, by the medians of both."""

    kind: Kind
    cpu_seconds: float
    device_seconds: float
    ratio: float
    """of the CPU's time to the device's: 2 is half the time"""
    interval: Interval | None
    no_interval: str | None = None
    """why there is none"""

    @property
    def is_faster(self) -> bool | None:
        """True if the device is faster, None without an interval or with one that spans 1."""
        if self.interval is None or self.interval[0] <= 1 <= self.interval[1]:
            return None
        return self.interval[0] > 1


def speedups(cpu: Timings, device: Timings) -> dict[Kind, Speedup]:
    """Return the speed-ups of a step, an epoch and the whole job."""
    margin = run_margin(cpu, device)
    step = _speedup("step", cpu.steady_state.step_seconds, device.steady_state.step_seconds, "sample", margin)
    whole = _speedup("end_to_end", cpu.end_to_end_seconds, device.end_to_end_seconds, "repeat", margin)
    if whole.interval and any(side.once_seconds > _MOST_SHARE_OF_ONCE * side.total_seconds for side in (cpu, device)):
        whole = replace(whole, interval=None, no_interval="most of it is start-up, which happened once")
    return {"step": step, "epoch": epoch_speedup(cpu, device), "end_to_end": whole}


def epoch_speedup(cpu: Timings, device: Timings) -> Speedup:
    """Return the speed-up of an epoch with its data."""
    return _speedup("epoch", cpu.epoch_seconds, device.epoch_seconds, "epoch", run_margin(cpu, device))


def _speedup(kind: Kind, cpu: list[float], device: list[float], unit: str, margin: float) -> Speedup:
    """Its interval is that of the values, as they vary, and beyond it what a whole run may be off."""
    cpu_seconds, device_seconds = float(np.median(cpu)), float(np.median(device))
    found, count = ratio_interval(cpu, device), min(len(cpu), len(device))
    interval = (found[0] / margin, found[1] * margin) if found else None
    why = None if found else f"{count} {unit}{'s' if count > 1 else ''}, and it takes {LEAST_VALUES}"
    return Speedup(kind, cpu_seconds, device_seconds, cpu_seconds / device_seconds, interval, why)


@dataclass(frozen=True)
class BreakEvenEpochs:
    """Epochs after which the GPU has made up for its longer start-up."""

    epochs: float
    """after which the GPU is ahead: 0 where it starts no later and is no slower, infinite where it never is"""
    interval: Interval | None
    """of what the epochs vary, and the ratio of two runs may be off; each start-up was measured once"""
    finding: str


@dataclass(frozen=True)
class TimeToTarget:
    """Time until an accuracy was reached."""

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
    """Energy from the first epoch's start to the last one's end, without start-up."""

    joules: float | None
    status: Literal["measured", "estimated", "unavailable"]
    counted: str
    """of what it is the sum; where there is none, why"""


@dataclass(frozen=True)
class Cost:
    """Cost in the currency of the settings."""

    amount: float | None
    counted: str
    """of what it is the sum; where there is none, why"""


@dataclass(frozen=True)
class ResourceUse:
    """Energy and money that one training took."""

    energy: EnergyUsed
    cost: Cost
    currency: str
    target: TimeToTarget | None = None
    """None where the settings name none"""
    joules_to_target: float | None = None
    """the epochs' share of the energy by their share of the time"""
    cost_to_target: Cost | None = None


def payback(cpu: Timings, gpu: Timings) -> BreakEvenEpochs:
    """Compare start-ups, and median epochs with their validation."""
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
        return BreakEvenEpochs(epochs, None, f"{told} (no interval: {_count(fewest)}, and it takes {LEAST_VALUES})")
    drawn_cpu, drawn_gpu, margin = drawn_medians(cpu_epochs, 0), drawn_medians(gpu_epochs, 1), run_margin(cpu, gpu)
    _, most_seconds = percentile_interval(drawn_cpu * margin - drawn_gpu)
    least_seconds, _ = percentile_interval(drawn_cpu / margin - drawn_gpu)
    interval = _epochs(extra_seconds, most_seconds), _epochs(extra_seconds, least_seconds)
    low, high = ("never" if math.isinf(end) else f"{math.ceil(end):,}" for end in interval)  # as told: whole epochs
    return BreakEvenEpochs(epochs, interval, told if low == high else f"{told} (95 % interval {low} to {high})")


def _epochs(extra_seconds: float, gain_seconds: float) -> float:
    """Return the epochs that repay a later start: 0 if there is none, infinite if epochs are slower."""
    if gain_seconds < 0:
        return math.inf
    if extra_seconds <= 0:
        return 0.0
    return extra_seconds / gain_seconds if gain_seconds else math.inf


def _count(epochs: int) -> str:
    return f"{epochs:,} epoch{'' if epochs == 1 else 's'}"


def outlay(device: DeviceLabel, timings: Timings, history: Sequence[EpochMetrics], settings: Comparing) -> ResourceUse:
    """Energy and cost of the whole training, and up to the accuracy that the settings name."""
    energy, currency = energy_used(device, timings, settings), settings.prices.currency
    whole = cost(device, timings.total_seconds, energy.joules, settings)
    if settings.target_accuracy is None or history[0].validation_accuracy is None:
        return ResourceUse(energy, whole, currency)
    target = time_to_target(history, timings.epochs, timings.startup_seconds, settings.target_accuracy)
    if target.seconds is None or target.share is None:
        return ResourceUse(energy, whole, currency, target)
    joules = None if energy.joules is None else energy.joules * target.share
    return ResourceUse(energy, whole, currency, target, joules, cost(device, target.seconds, joules, settings))


def time_to_target(
    history: Sequence[EpochMetrics], epochs: Sequence[EpochTiming], startup_seconds: float, target: float
) -> TimeToTarget:
    """Find the first epoch whose validation accuracy is high enough. Time between epochs isn't counted."""
    accuracies = [epoch.validation_accuracy or 0.0 for epoch in history]
    epoch = next((number for number, accuracy in enumerate(accuracies, 1) if accuracy >= target), None)
    if epoch is None:
        return TimeToTarget(target, None, None, None, max(accuracies))
    seconds = passed_seconds(epochs[:epoch])
    return TimeToTarget(target, epoch, startup_seconds + seconds, seconds / passed_seconds(epochs), max(accuracies))


def energy_used(device: DeviceLabel, timings: Timings, settings: Comparing) -> EnergyUsed:
    """Return the energy by the device's own counter, or else by the power that the settings give."""
    own = next((part for part in timings.energy if part.of == device), None)
    if own and own.joules is not None:
        return EnergyUsed(own.joules, "measured", _COUNTED[device])
    watts = settings.watts.cpu if device == "cpu" else settings.watts.gpu
    if watts is not None:
        estimated = f"{watts:g} W (compare.watts.{device}) times the epochs' time"
        return EnergyUsed(watts * passed_seconds(timings.epochs), "estimated", estimated)
    reason = own.reason if own and own.reason else "not recorded"
    return EnergyUsed(None, "unavailable", f"{reason}; compare.watts.{device} would give an estimate")


def cost(device: DeviceLabel, seconds: float, joules: float | None, settings: Comparing) -> Cost:
    """Return the price of the time, and of the energy if that has one."""
    prices = settings.prices
    hour_price = prices.cpu_hour if device == "cpu" else prices.gpu_hour
    amounts = {}
    if hour_price is not None:
        amounts["time"] = seconds / SECONDS_AN_HOUR * hour_price
    if prices.kilowatt_hour is not None and joules is not None:
        amounts["energy"] = joules / JOULES_A_KILOWATT_HOUR * prices.kilowatt_hour
    counted = " and ".join(amounts) or f"no price of an hour (compare.prices.{device}_hour)"
    if prices.kilowatt_hour is not None and joules is None:
        counted += ", its energy being unknown"
    return Cost(sum(amounts.values()) if amounts else None, counted)


def run_margin(*runs: Timings) -> float:
    """Return the factor by which a run, or the ratio of two, may be off as a whole."""
    return BUSY if any(load_warnings(run.load) for run in runs) else RUN_TO_RUN


def ratio_interval(above: Sequence[float], below: Sequence[float]) -> Interval | None:
    """Return the bootstrap's 95 % interval of a ratio of medians, or None for too few values."""
    if min(len(above), len(below)) < LEAST_VALUES:
        return None
    return percentile_interval(drawn_medians(above, 0) / drawn_medians(below, 1))


def students_t(freedom: int) -> float:
    """Return Student's t for 95 % on both sides, a little too large above 30 degrees of freedom."""
    return _STUDENTS_T[min(freedom, len(_STUDENTS_T)) - 1]


def drawn_medians(values: Sequence[float], seed: int) -> FloatArray:
    """Return the medians of 2,000 draws of the values with replacement.

    Values that are compared take different seeds, since equal seeds give equal draws.
    """
    lower, upper = np.sort(np.asarray(values, dtype=np.float64))[_middle_places(len(values), seed, _RESAMPLES)]
    medians: FloatArray = (lower + upper) / 2
    return medians


@lru_cache(maxsize=128)
def _middle_places(count: int, seed: int, resamples: int) -> NDArray[np.intp]:
    """Return the two middle places of each draw among the sorted values. They are the same for all of one count."""
    places = np.random.default_rng(seed).integers(count, size=(resamples, count))
    places.sort(axis=1)
    return places[:, [(count - 1) // 2, count // 2]].T


def percentile_interval(drawn: FloatArray) -> Interval:
    """Return the middle 95 % of the draws, some of which may be infinite."""
    low, high = np.quantile(drawn, [0.025, 0.975], method="inverted_cdf")
    return float(low), float(high)
