"""Prices of accelerators, from the settings or else the lowest list price, and who rents one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

from photofinish.config.compare import RENTAL_MINUTES, Comparing, ListPrice, Prices, list_prices

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
    """Return the machine with the lowest list price that has this accelerator."""
    known = [price for price in list_prices() if price.accelerator == name]
    return min(known, key=lambda price: price.usd_per_hour, default=None)


def cost_of(seconds: float, price: Price | None) -> float | None:
    return price.amount * seconds / SECONDS_AN_HOUR if price else None
