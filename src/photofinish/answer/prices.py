"""Prices of accelerators and of trainings, from the settings or else the lowest list price."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from photofinish.config.compare import RENTAL_MINUTES, Comparing, ListPrice, Prices, list_prices
from photofinish.results import EpochMetrics, EpochTiming, passed_seconds
from photofinish.results.job import Job
from photofinish.results.trained import DeviceLabel

SECONDS_AN_HOUR = 3600.0
_LIST_CURRENCY = "USD"


@dataclass(frozen=True)
class Price:
    amount: float
    currency: str
    where: str
    as_of: date | None
    """Date of a list price. None for a price from the settings."""
    gpus: int = 1
    """GPUs of the machine, which are all paid for."""


@dataclass(frozen=True)
class GpuTerms:
    """Conditions on which a GPU can be had. By default it is here."""

    start_seconds: float = 0.0
    """Time until it is ready."""
    worth_seconds: float = 0.0
    """Time that it must save in addition to its start."""
    price: Price | None = None
    is_rented: bool = False

    @property
    def least_seconds(self) -> float:
        """Time that it must save, including its start."""
        return self.start_seconds + self.worth_seconds


def terms_of(name: str, settings: Comparing) -> GpuTerms:
    """Return the terms of a GPU. One that is free or ready at once is used, not rented.

    One without a price is the user's: by default it has no start, and need not save minutes.
    """
    price, minutes = price_of(name, settings.prices), settings.rental_minutes
    own_amount = settings.prices.accelerator_hour.get(name)
    is_listed = bool(own_amount) or cheapest_machine(name) is not None
    if minutes is None and not is_listed:
        return GpuTerms(price=price)
    minutes = RENTAL_MINUTES if minutes is None else minutes
    is_rented = is_listed and own_amount != 0 and minutes > 0
    if not is_rented and own_amount is None:
        price = None  # a list's price is for renting
    return GpuTerms(60 * minutes, 60 * settings.worth_saving, price, is_rented)


def price_of(name: str, prices: Prices) -> Price | None:
    """Return the price in the settings, or else the lowest list price of a whole machine.

    List prices are in dollars, so they are not used if the settings have another currency.
    """
    if name in prices.accelerator_hour:
        return Price(prices.accelerator_hour[name], prices.currency, "compare.prices", None)
    lowest = cheapest_machine(name)
    if lowest is None or prices.currency != _LIST_CURRENCY:
        return None
    together = f", {lowest.gpus} of them together" if lowest.gpus > 1 else ""
    where = f"{lowest.cloud} {lowest.instance}, {lowest.region}{together}"
    return Price(lowest.usd_per_hour, _LIST_CURRENCY, where, lowest.as_of, lowest.gpus)


def cheapest_machine(name: str) -> ListPrice | None:
    known = [price for price in list_prices() if price.accelerator == name]
    return min(known, key=lambda price: price.usd_per_hour, default=None)


def cost_of(seconds: float, price: Price | None) -> float | None:
    return price.amount * seconds / SECONDS_AN_HOUR if price else None


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
