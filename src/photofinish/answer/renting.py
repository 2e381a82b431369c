"""Estimates of a training's time and cost on rented accelerators, and whether it fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from photofinish.answer.bounds import SpeedupBounds
from photofinish.answer.estimated_job import Estimate, estimate_job, measured_over_estimated
from photofinish.answer.estimates import fits, least_memory_bytes
from photofinish.answer.prices import GpuTerms, cheapest_machine, terms_of
from photofinish.answer.result import Result
from photofinish.config.compare import Accelerator, Comparing, accelerators
from photofinish.results.job_times import JobTimes


@dataclass(frozen=True)
class LoaderNeed:
    """Loading that keeps a GPU busy, from its estimated steps and the speed of one core here."""

    gpu_samples_a_second: float
    core_samples_a_second: float
    cores: int
    """Cores of the cheapest machine with this GPU."""
    vcpus: int

    @property
    def wanted_cores(self) -> float:
        """Number of cores that load as fast as the GPU trains."""
        return self.gpu_samples_a_second / self.core_samples_a_second

    @property
    def waiting_share(self) -> float:
        """Share of time that the GPU waits, even with a worker for each core."""
        return max(0.0, 1 - self.cores / self.wanted_cores)


def loader_need(run: Result, estimate: Estimate | None, name: str) -> LoaderNeed | None:
    """Return the need of this accelerator, or None if steps, loading or machine are unknown."""
    loader, machine = run.timings.loader, cheapest_machine(name)
    if not loader or not loader.whole_seconds or estimate is None or machine is None:
        return None
    rate = run.timings.training_image_count / estimate.steps_seconds
    core_rate = loader.batch_size / loader.whole_seconds
    return LoaderNeed(rate, core_rate, machine.cores, machine.vcpus)


@dataclass(frozen=True)
class RentalOption:
    """Accelerator as an option for one training."""

    accelerator: Accelerator
    needed_bytes: int
    """Least memory of a step."""
    fits: Literal["yes", "perhaps", "no"]
    terms: GpuTerms
    estimate: Estimate | None
    loader_need: LoaderNeed | None


@dataclass(frozen=True)
class RentalComparison:
    options: tuple[RentalOption, ...]
    not_counted: str | None
    """Reason why there are no options, from the training's record."""


def renting(
    run: Result, stays: SpeedupBounds, settings: Comparing, measured: Sequence[JobTimes] = ()
) -> RentalComparison:
    """Return estimates of time and cost for each accelerator in the settings.

    Estimates are scaled by `measured` times of the same training on a GPU.
    """
    timings, options, not_counted = run.timings, [], None
    if operations := timings.operations:
        precision = operations.precision(run.wanted_precision)
        scale = measured_over_estimated(run, operations, measured)
        reserved_bytes = max((each.peak_reserved_bytes or 0 for each in measured), default=0)
        for name in settings.accelerators:
            terms = terms_of(name, settings)
            accelerator = accelerators()[name]
            estimate = estimate_job(run, operations, stays, accelerator, scale)
            option = RentalOption(
                accelerator=accelerator,
                needed_bytes=least_memory_bytes(operations, precision),
                fits=fits(operations, precision, accelerator.memory_gib, reserved_bytes),
                terms=terms,
                estimate=estimate,
                loader_need=loader_need(run, estimate, name),
            )
            options.append(option)
    elif settings.accelerators:
        not_counted = timings.not_counted or "a step's operations were not counted"
    return RentalComparison(tuple(options), not_counted)
