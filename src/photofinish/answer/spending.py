"""Cost of a training, and its time to a target accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from photofinish.answer.prices import SECONDS_AN_HOUR
from photofinish.config.compare import Comparing
from photofinish.results import EpochMetrics, EpochTiming, passed_seconds
from photofinish.results.job import Job
from photofinish.results.trained import DeviceLabel


@dataclass(frozen=True)
class TimeToTarget:
    target: float
    epoch: int | None
    seconds: float | None
    """Time from the start of the process to the end of the epoch's validation."""


@dataclass(frozen=True)
class ResourceUse:
    cost: float | None
    currency: str
    target: TimeToTarget | None = None
    cost_to_target: float | None = None


def resource_use(run: Job, settings: Comparing) -> ResourceUse:
    """Return the training's cost in total and up to the target accuracy.

    The total has repeats and further seeds. A script has no history, so it has no target.
    """
    device, trained = run.device, run.trained
    currency = settings.prices.currency
    further = [*trained.repeats, *trained.seeds] if trained else []
    paid_seconds = run.total_seconds + sum(map(passed_seconds, further))
    whole = cost(device, paid_seconds, settings)
    accuracy = settings.target_accuracy
    if accuracy is None or not trained or trained.history[0].validation_accuracy is None:
        return ResourceUse(whole, currency)
    target = time_to_target(trained.history, trained.epochs, run.startup_seconds, accuracy)
    if target.seconds is None:
        return ResourceUse(whole, currency, target)
    return ResourceUse(whole, currency, target, cost(device, target.seconds, settings))


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


def cost(device: DeviceLabel, seconds: float, settings: Comparing) -> float | None:
    prices = settings.prices
    hour_price = prices.cpu_hour if device == "cpu" else prices.gpu_hour
    return None if hour_price is None else seconds / SECONDS_AN_HOUR * hour_price
