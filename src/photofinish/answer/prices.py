"""Prices of rented accelerators, from the settings or else the lowest list price."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

from photofinish.config.compare import ListPrice, Prices, list_prices

SECONDS_AN_HOUR = 3600.0
_LIST_CURRENCY = "USD"


@dataclass(frozen=True)
class Price:
    amount: float
    currency: str
    where: str
    as_of: date | None
    """Date of a list price. None for a price from the settings."""


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
    return Price(lowest.usd_per_hour, _LIST_CURRENCY, where, lowest.as_of)


def cheapest_machine(name: str) -> ListPrice | None:
    """Return the machine with the lowest list price that has this accelerator."""
    known = [price for price in list_prices() if price.accelerator == name]
    return min(known, key=lambda price: price.usd_per_hour, default=None)


def cost_of(seconds: float | None, price: Price | None) -> float | None:
    if price is None or seconds is None:
        return None
    return price.amount * seconds / SECONDS_AN_HOUR
