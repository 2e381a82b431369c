"""Which accelerator to rent: of each the least time and money that this training could take on it, and whether it fits.

The accelerator is put into this machine in thought: what the CPU is sure to do beside it (see bounds.py) stays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Literal

from photofinish.comparing.bounds import (
    MinimumStepTime,
    SpeedupBounds,
    estimated_step_seconds,
    least_memory_bytes,
    least_steps,
)
from photofinish.comparing.device_results import Recorded, spread
from photofinish.comparing.speedups import SECONDS_AN_HOUR, TimeToTarget
from photofinish.config.compare import Accelerator, Comparing, Prices, accelerators, list_prices
from photofinish.results.measurements import Operations
from photofinish.wording import listed, money, seconds

_OLD = timedelta(days=183)
_LIST_CURRENCY = "USD"
_GIB = 2**30
_OWN_BYTES = 2**30
"""what a driver and its libraries take of the memory for themselves, generously"""
NEXT_TO_NOTHING = 1e-4
"""of a currency"""
_ROOM = 1.5
"""times what a step surely holds, for all that it holds besides"""


@dataclass(frozen=True)
class Price:
    """Price of an hour of a machine with the accelerator."""

    amount: float
    currency: str
    where: str
    as_of: date | None
    """of a list; None of the user's own"""

    def is_old(self, at: date) -> bool:
        """More than half a year before that day."""
        return self.as_of is not None and at - self.as_of > _OLD


@dataclass(frozen=True)
class Estimate:
    """About, where a step is like those that were fitted; see bounds.py for how far off it may be."""

    epoch_seconds: float
    job_seconds: float
    """with this machine's start-up and loading, as they were measured"""
    cost: float | None


@dataclass(frozen=True)
class RentalOption:
    """One accelerator for one training: bounds, but for the estimate."""

    accelerator: Accelerator
    step: MinimumStepTime
    epoch_seconds: float
    """at least, its loading included"""
    job_seconds: float
    """at least, start-up included"""
    epoch_at_most: float
    """times as fast as here"""
    job_at_most: float
    needed_bytes: int
    """at least, of its memory"""
    fits: Literal["yes", "perhaps", "no"]
    price: Price | None
    cost: float | None
    """of the job, at least"""
    target_seconds: float | None
    """at least, to the accuracy that is aimed at; None where it wasn't reached here"""
    target_cost: float | None
    estimate: Estimate | None


@dataclass(frozen=True)
class RentalComparison:
    """Offers of all accelerators in the settings."""

    offers: tuple[RentalOption, ...]
    trained_on: date
    """the day that prices are held against"""
    untold: str | None
    """why there are none"""
    without: str | None
    """why start-up and loading, which stay on the CPU, aren't in them"""

    @property
    def prices(self) -> str:
        """Whose are used, of when those of lists are, and which are old."""
        used = [(offer.accelerator.name, offer.price) for offer in self.offers if offer.price]
        told = ["your own prices"] if any(price.as_of is None for _, price in used) else []
        if days := sorted({f"{price.as_of}" for _, price in used if price.as_of}):
            told.append(f"list prices of {' to '.join(dict.fromkeys([days[0], days[-1]]))}")
        old = [name for name, price in used if price.is_old(self.trained_on)]
        looked_up = f"; over half a year old when this was trained, and to be looked up: {', '.join(old)}"
        return listed(told) + (looked_up if old else "")

    @property
    def sentence(self) -> str | None:
        """The quickest that may be had and the cheapest, by their bounds; or why there are none."""
        if self.untold:
            return f"Of the accelerators asked for, nothing is told by their data sheets: {self.untold}."
        fitting = [offer for offer in self.offers if offer.fits != "no"]
        if not fitting:
            return None
        least_seconds = min(offer.job_seconds for offer in fitting)
        quickest = [offer.accelerator.name for offer in fitting if offer.job_seconds == least_seconds]
        told = f"the job would take at least {seconds(least_seconds)} on {listed(quickest)}"
        costs = [(offer.cost, offer.accelerator.name, offer.price) for offer in fitting if offer.cost is not None]
        if costs:
            cost, name, price = min(costs, key=lambda each: each[0])
            amount = at_least(cost, price.currency if price else "")
            sheets = "its data sheet" if len(quickest) == 1 else "their data sheets"
            told += f", the quickest by {sheets}, and cost {amount} on {name}, the cheapest ({self.prices})"
        told = f"Of the accelerators asked for, {told}: bounds, which no PyTorch program beats there, and no estimates."
        if self.without:
            told += f" The CPU's start-up and loading, not known ({self.without}), come on top."
        return told


def renting(run: Recorded, stays: SpeedupBounds, target: TimeToTarget | None, settings: Comparing) -> RentalComparison:
    """Return what a training on the CPU would at least take on each accelerator in the settings."""
    trained_on, operations = datetime.fromtimestamp(run.timings.started_at_unix_seconds, UTC), run.timings.operations
    offers = [
        _offer(run, operations, stays, target, accelerators()[name], price_of(name, settings.prices))
        for name in settings.accelerators
        if operations
    ]
    why_none = run.timings.not_counted or "a step's operations were not counted"
    untold = why_none if settings.accelerators and not operations else None
    return RentalComparison(tuple(offers), trained_on.date(), untold, stays.untold)


def _offer(
    run: Recorded,
    operations: Operations,
    stays: SpeedupBounds,
    target: TimeToTarget | None,
    accelerator: Accelerator,
    price: Price | None,
) -> RentalOption:
    timings, precision = run.timings, run.record.experiment.precision
    device = least_steps(operations, accelerator, precision, timings.training_image_count)
    startup_seconds, epoch_seconds, job_seconds = _with_the_cpu(run, stays, "staying_seconds", device.seconds)
    _, slow_epoch_seconds = spread(timings.epoch_seconds)
    _, slow_job_seconds = spread(timings.end_to_end_seconds)
    target_seconds = startup_seconds + target.epoch * epoch_seconds if target and target.epoch else None
    needed_bytes = least_memory_bytes(operations, precision)
    return RentalOption(
        accelerator,
        least_steps(operations, accelerator, precision),
        epoch_seconds,
        job_seconds,
        slow_epoch_seconds / epoch_seconds if epoch_seconds else math.inf,
        slow_job_seconds / job_seconds if job_seconds else math.inf,
        needed_bytes,
        _fits(operations, needed_bytes, accelerator.memory_gib * _GIB),
        price,
        cost_of(job_seconds, price),
        target_seconds,
        cost_of(target_seconds, price),
        _estimate(run, operations, stays, accelerator, price),
    )


def _with_the_cpu(run: Recorded, stays: SpeedupBounds, which: str, device_seconds: float) -> tuple[float, float, float]:
    """Start-up, an epoch that takes the device so long, and the job. What the CPU does whatever computes, start-up and
    an epoch's loading, is nothing where it can't be told."""
    epochs, loading_seconds = len(run.timings.epochs), getattr(stays.epoch, which) if stays.epoch else 0.0
    startup_seconds = getattr(stays.job, which) - epochs * loading_seconds if stays.job else 0.0
    epoch_seconds = max(device_seconds, loading_seconds)
    return startup_seconds, epoch_seconds, startup_seconds + epochs * epoch_seconds


def _estimate(
    run: Recorded, operations: Operations, stays: SpeedupBounds, accelerator: Accelerator, price: Price | None
) -> Estimate | None:
    step_seconds = estimated_step_seconds(operations, accelerator, run.record.experiment.precision)
    if step_seconds is None:
        return None
    device_seconds = run.timings.training_image_count / operations.images * step_seconds
    _, epoch_seconds, job_seconds = _with_the_cpu(run, stays, "measured_seconds", device_seconds)
    return Estimate(epoch_seconds, job_seconds, cost_of(job_seconds, price))


def cost_of(seconds: float | None, price: Price | None) -> float | None:
    """Return the cost of so many seconds, or None if it is unknown."""
    return price.amount * seconds / SECONDS_AN_HOUR if price and seconds is not None else None


def _fits(operations: Operations, needed_bytes: int, memory_bytes: float) -> Literal["yes", "perhaps", "no"]:
    """Return no only if that is sure, and yes only with room for what the CPU's step kept and for a driver."""
    if needed_bytes > memory_bytes:
        return "no"
    likely_bytes = needed_bytes + operations.gradient_bytes + operations.saved_tensor_bytes
    return "yes" if _ROOM * likely_bytes + _OWN_BYTES <= memory_bytes else "perhaps"


def price_of(name: str, prices: Prices) -> Price | None:
    """The user's own; else the lowest that is known of a whole machine, in dollars like the user's prices."""
    if name in prices.accelerator_hour:
        return Price(prices.accelerator_hour[name], prices.currency, "compare.prices", None)
    known = [each for each in list_prices() if each.accelerator == name]
    if not known or prices.currency != _LIST_CURRENCY:
        return None
    lowest = min(known, key=lambda each: each.usd_per_hour)
    together = f", {lowest.gpus} of them together" if lowest.gpus > 1 else ""
    where = f"{lowest.cloud} {lowest.instance}, {lowest.region}{together}"
    return Price(lowest.usd_per_hour, _LIST_CURRENCY, where, lowest.as_of)


def at_least(amount: float, currency: str) -> str:
    """Format a cost that is a bound."""
    return "next to nothing" if amount < NEXT_TO_NOTHING else f"at least {money(amount, currency)}"


def pareto_front(offers: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the Pareto front of pairs of time and cost, by their time."""
    best: list[tuple[float, float]] = []
    for time, cost in sorted(offers):
        if not best or cost < best[-1][1]:
            best.append((time, cost))
    return best
