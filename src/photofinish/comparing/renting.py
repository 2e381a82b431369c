"""Least and estimated time and cost of a training on rented accelerators, and whether it fits.

A rented machine has another CPU, so its start-up and loading are estimated from those measured
here. Bounds are made of the accelerator's data sheet alone.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Literal

from photofinish.comparing.bounds import (
    MinimumStepTime,
    SpeedupBounds,
    least_memory_bytes,
    least_steps,
)
from photofinish.comparing.device_results import Recorded, ScriptResult, spread
from photofinish.comparing.estimates import CONTEXT_SECONDS, estimate_step
from photofinish.comparing.speedups import SECONDS_AN_HOUR, TimeToTarget
from photofinish.config.compare import (
    Accelerator,
    Comparing,
    ListPrice,
    Prices,
    accelerators,
    list_prices,
)
from photofinish.config.experiment import Experiment, LoaderInput
from photofinish.machine.host import allowed_cores
from photofinish.machine.load import load_warnings
from photofinish.results.measurements import Operations
from photofinish.results.records import Timings

_OLD = timedelta(days=183)
_LIST_CURRENCY = "USD"
_GIB = 2**30
_DRIVER_BYTES = 2**30
"""Generous size of a driver and its libraries in the device's memory."""
_ROOM = 1.5
"""Factor on the least memory of a step, for everything else in the memory."""
_OTHER_CPU = 1.5
"""Factor by which start-up and loading may differ on a rented machine's CPU. A guess."""


@dataclass(frozen=True)
class Price:
    amount: float
    currency: str
    where: str
    as_of: date | None
    """Date of a list price; None for a price in the settings."""

    def is_old(self, at: date) -> bool:
        return self.as_of is not None and at - self.as_of > _OLD


@dataclass(frozen=True)
class Estimate:
    """Estimated times and cost."""

    epoch_seconds: float
    startup_seconds: float
    """Start-up as measured here, and that of a GPU."""
    job_seconds: float
    job_interval: tuple[float, float]
    """Job times if the step is as far off as nine of ten estimates are, and the CPU by a factor."""
    cost: float | None


@dataclass(frozen=True)
class RentalOption:
    """One accelerator for one training. All figures but the estimate are bounds."""

    accelerator: Accelerator
    step: MinimumStepTime
    epoch_seconds: float
    """Least time of the device's arithmetic and memory traffic."""
    job_seconds: float
    """Least time of all epochs' training."""
    epoch_at_most: float
    job_at_most: float
    needed_bytes: int
    fits: Literal["yes", "perhaps", "no"]
    price: Price | None
    cost: float | None
    target_seconds: float | None
    """Least time to the target accuracy; None if it was not reached here."""
    target_cost: float | None
    estimate: Estimate | None


@dataclass(frozen=True)
class RentalComparison:
    offers: tuple[RentalOption, ...]
    trained_on: date
    not_counted: str | None
    """Reason why there are no offers, from the training's record."""


def renting(
    run: Recorded | ScriptResult,
    stays: SpeedupBounds,
    target: TimeToTarget | None,
    settings: Comparing,
    measured: Sequence[Timings] = (),
) -> RentalComparison:
    """Return the least and estimated time and cost on each accelerator in the settings.

    Estimates are scaled by `measured` times of the same training on a GPU.
    """
    timings, offers, not_counted = run.timings, [], None
    trained_on = datetime.fromtimestamp(timings.started_at_unix_seconds, UTC).date()
    if operations := timings.operations:
        scale = _measured_over_estimated(run, operations, measured)
        for name in settings.accelerators:
            price = price_of(name, settings.prices)
            accelerator, estimate = accelerators()[name], None
            if not stays.loading_not_known:
                estimate = _estimate(run, operations, stays, accelerator, price, scale)
            offers.append(_offer(run, operations, target, accelerator, price, estimate))
    elif settings.accelerators:
        not_counted = timings.not_counted or "a step's operations were not counted"
    return RentalComparison(tuple(offers), trained_on, not_counted)


def _offer(
    run: Recorded | ScriptResult,
    operations: Operations,
    target: TimeToTarget | None,
    accelerator: Accelerator,
    price: Price | None,
    estimate: Estimate | None,
) -> RentalOption:
    timings, precision = run.timings, operations.precision(run.record.experiment.precision)
    samples, epochs = timings.training_image_count, len(timings.epochs)

    epoch_seconds = least_steps(operations, accelerator, precision, samples).seconds
    job_seconds = epochs * epoch_seconds
    target_seconds = target.epoch * epoch_seconds if target and target.epoch else None

    _, slow_epoch_seconds = spread(timings.epoch_seconds)
    _, slow_job_seconds = spread(timings.end_to_end_seconds)
    needed_bytes = least_memory_bytes(operations, precision)
    return RentalOption(
        accelerator=accelerator,
        step=least_steps(operations, accelerator, precision),
        epoch_seconds=epoch_seconds,
        job_seconds=job_seconds,
        epoch_at_most=slow_epoch_seconds / epoch_seconds if epoch_seconds else math.inf,
        job_at_most=slow_job_seconds / job_seconds if job_seconds else math.inf,
        needed_bytes=needed_bytes,
        fits=_fits(operations, needed_bytes, accelerator.memory_gib * _GIB),
        price=price,
        cost=cost_of(job_seconds, price),
        target_seconds=target_seconds,
        target_cost=cost_of(target_seconds, price),
        estimate=estimate,
    )


def _estimate(
    run: Recorded | ScriptResult,
    operations: Operations,
    stays: SpeedupBounds,
    accelerator: Accelerator,
    price: Price | None,
    scale: float,
) -> Estimate | None:
    """Return the job's estimate, or None if there is none of its steps."""
    timings, experiment = run.timings, run.record.experiment
    step = estimate_step(operations, accelerator, experiment, _quickest_step_seconds(timings))
    if step is None:
        return None
    epochs = len(timings.epochs)
    steps = scale * timings.training_image_count / operations.images
    loading_seconds = stays.epoch.measured_seconds if stays.epoch else 0.0
    startup_seconds = stays.job.measured_seconds - epochs * loading_seconds
    loading_seconds *= _loading_factor(run, accelerator.name)
    source = experiment.input if isinstance(experiment, Experiment) else None
    if isinstance(source, LoaderInput) and source.workers == 0:
        # The process that launches the steps loads their batches, too.
        loading_seconds += steps * step.launch_seconds
    passes, job_seconds = epochs * (1 + _validation_share(timings)), []
    cpu_factors = 1 / _OTHER_CPU, 1.0, _OTHER_CPU
    for step_seconds, cpu_factor, context_seconds in zip(
        step.spread, cpu_factors, CONTEXT_SECONDS, strict=True
    ):
        epoch_seconds = max(steps * step_seconds, cpu_factor * loading_seconds)
        once_seconds = cpu_factor * startup_seconds + context_seconds
        job_seconds.append(once_seconds + passes * epoch_seconds)
    low, middle, high = job_seconds
    return Estimate(
        max(steps * step.seconds, loading_seconds),
        startup_seconds + CONTEXT_SECONDS[1],
        middle,
        (low, high),
        cost_of(middle, price),
    )


def _measured_over_estimated(
    run: Recorded | ScriptResult, operations: Operations, measured: Sequence[Timings]
) -> float:
    """Return how much longer a quiet GPU's step took than estimated; 1 if none is known."""
    by_name = {each.full_name: each for each in accelerators().values()}
    for timings in measured:
        accelerator = by_name.get(timings.device_name)
        is_fit = timings.device_count == 1 and not load_warnings(timings.load)
        if not accelerator or not is_fit:
            continue
        cpu_step_seconds = _quickest_step_seconds(run.timings)
        if step := estimate_step(operations, accelerator, run.record.experiment, cpu_step_seconds):
            return statistics.median(timings.steady_state.step_seconds) / step.seconds
    return 1.0


def _quickest_step_seconds(timings: Timings) -> float:
    """Return the quickest step here, of either batch size that was tried."""
    seconds = timings.steady_state.step_seconds
    if timings.attribution:
        seconds = [*seconds, *timings.attribution.other_batch.step_seconds]
    return min(seconds)


def _validation_share(timings: Timings) -> float:
    """Return how long validation takes as a share of training, here and so by estimate there."""
    validation_seconds = sum(epoch.validation_seconds for epoch in timings.epochs)
    return validation_seconds / sum(epoch.training_seconds for epoch in timings.epochs)


def _loading_factor(run: Recorded | ScriptResult, name: str) -> float:
    """Return how many times as long loading takes in a rented machine.

    A loader's workers share its cores. An unknown machine is assumed to have as many as this one.
    """
    cpu, machine = run.timings.host.cpu, cheapest_machine(name)
    experiment = run.record.experiment
    source = experiment.input if isinstance(experiment, Experiment) else None
    if cpu is None or machine is None or not isinstance(source, LoaderInput):
        return 1.0
    workers = max(1, source.workers)
    return min(workers, allowed_cores(cpu)) / min(workers, machine.cores)


def cost_of(seconds: float | None, price: Price | None) -> float | None:
    if price is None or seconds is None:
        return None
    return price.amount * seconds / SECONDS_AN_HOUR


def _fits(
    operations: Operations, needed_bytes: int, memory_bytes: float
) -> Literal["yes", "perhaps", "no"]:
    """Return no only if that is sure, and yes only with room to spare."""
    if needed_bytes > memory_bytes:
        return "no"
    likely_bytes = needed_bytes + operations.gradient_bytes + operations.saved_tensor_bytes
    return "yes" if _ROOM * likely_bytes + _DRIVER_BYTES <= memory_bytes else "perhaps"


def price_of(name: str, prices: Prices) -> Price | None:
    """Return the price in the settings, or else the lowest list price of a whole machine.

    List prices are in dollars, so there are none beside prices in another currency.
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
