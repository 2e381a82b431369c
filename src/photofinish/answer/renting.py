"""Estimates of a training's time and cost on rented accelerators, and whether it fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from photofinish.answer.bounds import SpeedupBounds
from photofinish.answer.estimated_job import Estimate, estimate_job, measured_over_estimated
from photofinish.answer.loader_needs import LoaderNeed, loader_need
from photofinish.answer.memory import fits, least_memory_bytes
from photofinish.answer.prices import Price, price_of
from photofinish.answer.result import Result
from photofinish.config.compare import Accelerator, Comparing, accelerators
from photofinish.results.job_times import JobTimes


@dataclass(frozen=True)
class RentalOption:
    """Accelerator as an option for one training."""

    accelerator: Accelerator
    needed_bytes: int
    """Least memory of a step."""
    fits: Literal["yes", "perhaps", "no"]
    price: Price | None
    price_is_old: bool | None
    """True if the price was half a year old or more when the training began."""
    estimate: Estimate | None
    loader_need: LoaderNeed | None


@dataclass(frozen=True)
class RentalComparison:
    options: tuple[RentalOption, ...]
    not_counted: str | None
    """Reason why there are no options, from the training's record."""


def renting(
    run: Result,
    stays: SpeedupBounds,
    settings: Comparing,
    measured: Sequence[JobTimes] = (),
) -> RentalComparison:
    """Return estimates of time and cost for each accelerator in the settings.

    Estimates are scaled by `measured` times of the same training on a GPU.
    """
    timings, options, not_counted = run.timings, [], None
    if operations := timings.operations:
        trained_on = datetime.fromtimestamp(timings.started_at_unix_seconds, UTC).date()
        precision = operations.precision(run.wanted_precision)
        scale = measured_over_estimated(run, operations, measured)
        for name in settings.accelerators:
            price = price_of(name, settings.prices)
            accelerator, estimate = accelerators()[name], None
            if not stays.loading_not_known:
                estimate = estimate_job(run, operations, stays, accelerator, price, scale)
            option = RentalOption(
                accelerator=accelerator,
                needed_bytes=least_memory_bytes(operations, precision),
                fits=fits(operations, precision, accelerator.memory_gib),
                price=price,
                price_is_old=price.is_old(trained_on) if price else None,
                estimate=estimate,
                loader_need=loader_need(run, estimate, name),
            )
            options.append(option)
    elif settings.accelerators:
        not_counted = timings.not_counted or "a step's operations were not counted"
    return RentalComparison(tuple(options), not_counted)
