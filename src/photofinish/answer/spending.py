"""Energy of a training, its cost, and its time to a target accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from photofinish.answer.prices import SECONDS_AN_HOUR
from photofinish.answer.result import Result
from photofinish.config.compare import Comparing
from photofinish.results import EpochMetrics, EpochTiming, passed_seconds
from photofinish.results.job_times import JobTimes
from photofinish.results.records import DeviceLabel


@dataclass(frozen=True)
class TimeToTarget:
    target: float
    epoch: int | None
    seconds: float | None
    """Time from the start of the process to the end of the epoch's validation."""


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


def resource_use(run: Result, settings: Comparing) -> ResourceUse:
    """Return energy of the training, and its cost in total and up to the target accuracy.

    The total has repeats and further seeds. A script has no history, so it has no target.
    """
    device, timings = run.device, run.timings
    energy, currency = energy_used(device, timings), settings.prices.currency
    further = [*run.trained.timings.repeats, *run.trained.timings.seeds] if run.trained else []
    paid_seconds = timings.total_seconds + sum(map(passed_seconds, further))
    whole = cost(device, paid_seconds, settings)
    accuracy, history = settings.target_accuracy, run.history
    if accuracy is None or not run.trained or history[0].validation_accuracy is None:
        return ResourceUse(energy, whole, currency)
    epochs = run.trained.timings.epochs
    target = time_to_target(history, epochs, timings.startup_seconds, accuracy)
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
    for number, epoch in enumerate(history, 1):
        if (epoch.validation_accuracy or 0.0) >= target:
            return TimeToTarget(target, number, startup_seconds + passed_seconds(epochs[:number]))
    return TimeToTarget(target, None, None)


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
    prices = settings.prices
    hour_price = prices.cpu_hour if device == "cpu" else prices.gpu_hour
    if hour_price is None:
        return Cost(None, f"no price of an hour (compare.prices.{device}_hour)")
    return Cost(seconds / SECONDS_AN_HOUR * hour_price, "time")
