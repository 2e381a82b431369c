"""Estimates of a training's time and cost on rented accelerators, and whether it fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from photofinish.answer.bounds import SpeedupBounds
from photofinish.answer.estimated_job import Estimate, EstimatedJob
from photofinish.answer.estimates import fits, needed_bytes
from photofinish.answer.prices import GpuTerms, terms_of
from photofinish.config.compare import Accelerator, Comparing, accelerators
from photofinish.results.job import Job


@dataclass(frozen=True)
class RentalOption:
    """Accelerator as an option for one training."""

    accelerator: Accelerator
    needed_bytes: int | None
    """Memory that a step takes, or None if it is not known."""
    fits: Literal["yes", "perhaps", "no"] | None
    terms: GpuTerms
    estimate: Estimate | None


@dataclass(frozen=True)
class RentalComparison:
    options: tuple[RentalOption, ...]
    not_counted: str | None
    """Reason why there are no options, from the training's record."""


def renting(
    run: Job,
    stays: SpeedupBounds,
    rest_share: float,
    settings: Comparing,
    measured: Sequence[Job] = (),
) -> RentalComparison:
    """Return estimates of time and cost for each accelerator in the settings.

    `rest_share` is that of an epoch's step which none of its parts takes. Estimates are scaled by
    `measured` times of the same training on a GPU.
    """
    options, not_counted, operations = [], None, run.operations
    if operations and run.loading_seconds is not None:
        job = EstimatedJob(run, operations, stays, rest_share, measured)
        for name in settings.accelerators:
            terms = terms_of(name, settings)
            accelerator = accelerators()[name]
            option = RentalOption(
                accelerator=accelerator,
                needed_bytes=needed_bytes(operations),
                fits=fits(operations, accelerator.memory_gib),
                terms=terms,
                estimate=job.on(accelerator),
            )
            options.append(option)
    elif settings.accelerators:
        not_counted = run.not_counted or (
            "its loading was not timed" if operations else "a step's operations were not counted"
        )
    return RentalComparison(tuple(options), not_counted)
