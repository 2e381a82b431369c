"""Estimated time and cost of a whole job on rented accelerators, and whether it fits.

A rented machine has another CPU, so start-up and loading are estimated from measurements here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from photofinish.answer.estimates import (
    CONTEXT_SECONDS,
    OTHER_CPU,
    StepEstimate,
    are_captured,
    estimate_step,
    fits,
    needed_bytes,
    with_batch,
)
from photofinish.answer.prices import GpuTerms, cheapest_machine, terms_of
from photofinish.answer.speedups import SpeedupBounds
from photofinish.answer.times import UncertainTime, log_ratio
from photofinish.config.compare import Accelerator, Comparing, accelerators
from photofinish.machine.host import allowed_cores
from photofinish.results.job import Job, JobSettings
from photofinish.results.measurements import Operations

_LARGER_BATCH = 8
"""Factor on the batch size, by hand, of the larger step that an answer names beside a small one."""


@dataclass(frozen=True)
class LargerBatch:
    """Estimated step whose kernels take longer to launch than to compute, and a larger step."""

    batch_size: int
    step_seconds: float
    larger_batch_size: int
    larger_step_seconds: float


@dataclass(frozen=True)
class Estimate:
    epoch_seconds: float
    steps_seconds: float
    """Time of an epoch's steps, without waiting for their batches."""
    once_seconds: float
    """What happens once, as measured here, plus the time to start a GPU."""
    job: UncertainTime
    """Job's time if the step's estimate is off as nine of ten are, and the CPU's by a factor."""
    larger_batch: LargerBatch | None = None
    """Larger batch to suggest, if launching decides the step's time."""
    hides_loading: bool = False
    """True if workers here may hide loading that would take longer than this GPU's steps."""


def _estimate_step(
    run: Job, settings: JobSettings | None, operations: Operations, accelerator: Accelerator
) -> StepEstimate | None:
    """Return the estimate of a step with these settings. A script has no settings."""
    seconds = run.step_seconds
    if run.attribution:
        seconds = (*seconds, *run.attribution.other_batch.step_seconds)
    return estimate_step(
        operations,
        accelerator,
        # A device without the precision in the settings replaces it.
        run.settings.precision if run.settings else run.precision,
        min(seconds),
        is_captured=are_captured(settings, operations),
    )


class EstimatedJob:
    """Job whose epochs and start-up take other times on rented machines."""

    def __init__(
        self,
        run: Job,
        operations: Operations,
        stays: SpeedupBounds,
        rest_share: float,
        measured: Sequence[Job],
    ) -> None:
        """`rest_share` is that of an epoch's step which none of its parts takes."""
        self._run, self._operations = run, operations
        samples = run.samples
        # A script that loads no batches has steps without samples.
        steps = samples / operations.images if samples else run.steps_per_epoch or 1
        self._steps = measured_over_estimated(run, operations, measured) * steps
        self._once_seconds = run.once_seconds
        self._loading_seconds = stays.epoch.staying_seconds if stays.epoch else 0.0
        self._most_loading_seconds = steps * (
            (run.script and run.script.step_loading_seconds) or 0.0
        )
        """Most time of an epoch's loading that workers here hide behind its steps."""
        # Work of a script's own code, and what takes longer than training, such as rollouts, stays.
        epoch_seconds = run.mean_epoch_seconds
        # What an experiment does between epochs is the trainer's own, and not in its times.
        by_parts = run.by_parts if run.script else None
        self._between_seconds = by_parts.between_seconds if by_parts else 0.0
        rest_seconds = rest_share * epoch_seconds - self._between_seconds
        self._rest_seconds = 0.0 if run.settings else max(0.0, rest_seconds)
        self._validation_share = share = run.validation_share
        self._rollout_seconds = 0.0 if run.settings or share <= 1 else share * epoch_seconds
        """Time of an epoch that may be rollouts, which stay, or a long validation."""

    def on(self, accelerator: Accelerator) -> Estimate | None:
        """Return the job's estimate, or None if its step can't be estimated."""
        run, operations = self._run, self._operations
        step = _estimate_step(run, run.settings, operations, accelerator)
        if step is None:
            return None
        loading_seconds = self._loading_seconds * _loading_factor(run, accelerator.name)
        epoch_seconds = self._epoch_seconds(step, loading_seconds)
        return Estimate(
            epoch_seconds,
            self._steps * step.seconds,
            self._once_seconds + CONTEXT_SECONDS[1],
            self._time(step, loading_seconds),
            _larger_batch(run, operations, accelerator, step),
            self._most_loading_seconds > epoch_seconds,
        )

    def _epoch_seconds(
        self, step: StepEstimate, loading_seconds: float, end: int = 1, cpu_factor: float = 1.0
    ) -> float:
        """Return the time of steps at this end of their spread, or of the CPU's longer work."""
        # The rest of a step may also be work on tensors, which a GPU shortens.
        own_seconds = self._rest_seconds if cpu_factor >= 1 else 0.0
        own_seconds += loading_seconds if self._run.loads_itself else 0.0
        return max(
            self._steps * step.spread[end],
            cpu_factor * own_seconds + self._steps * step.launches[end],  # by one process
            cpu_factor * loading_seconds,
        )

    def _time(self, step: StepEstimate, loading_seconds: float) -> UncertainTime:
        """Return the job's time. The step, the CPU and the GPU's start are independent."""
        # Validation's share of the time is assumed to be equal on the GPU.
        epochs = self._run.epochs
        cpu_factors = 1 / OTHER_CPU, 1.0, OTHER_CPU

        def seconds(steps: int, cpu: int, start: int) -> float:
            """Return the time if each is fast (0), as estimated (1) or slow (2)."""
            epoch_seconds = self._epoch_seconds(step, loading_seconds, steps, cpu_factors[cpu])
            between_seconds = self._between_seconds
            passes = 1 + self._validation_share
            if self._rollout_seconds and cpu:  # if fast, it is validation
                between_seconds += self._rollout_seconds
                passes = 1.0
            once_seconds = self._once_seconds + epochs * between_seconds
            return (
                cpu_factors[cpu] * once_seconds
                + CONTEXT_SECONDS[start]
                + epochs * passes * epoch_seconds
            )

        def error(end: int) -> float:
            """Return the error of all three, by what each adds to those before it."""
            times = (seconds(1, 1, 1), seconds(end, 1, 1), seconds(end, end, 1))
            pairs = pairwise((*times, seconds(end, end, end)))
            return math.hypot(*(log_ratio(one, other) for one, other in pairs))

        middle_seconds = seconds(1, 1, 1)
        epoch_seconds = self._epoch_seconds(step, loading_seconds)
        hidden_seconds = max(0.0, self._most_loading_seconds - epoch_seconds)
        most_seconds = middle_seconds + epochs * (1 + self._validation_share) * hidden_seconds
        hidden = log_ratio(most_seconds, middle_seconds)
        return UncertainTime(middle_seconds, error(0), math.hypot(error(2), hidden))


def _larger_batch(
    run: Job, operations: Operations, accelerator: Accelerator, step: StepEstimate
) -> LargerBatch | None:
    """Return a step with a larger batch, if launching decides its time and the memory suffices."""
    if not step.is_launch_bound or not run.samples:
        return None
    larger = with_batch(operations, _LARGER_BATCH * operations.images)
    if fits(larger, accelerator.memory_gib) == "no":
        return None
    larger_step = _estimate_step(run, None, larger, accelerator)
    if larger_step is None:
        return None
    return LargerBatch(operations.images, step.seconds, larger.images, larger_step.seconds)


def measured_over_estimated(run: Job, operations: Operations, measured: Sequence[Job]) -> float:
    """Return the factor on all estimates by a quiet GPU's step, or 1 without a measurement.

    Errors of two accelerators correlate weakly (0.18 in 714 pairs), so the square root of the
    ratio predicts best.
    """
    by_name = {sheet.full_name: sheet for sheet in accelerators().values()}
    for job in measured:
        accelerator = by_name.get(job.device_name)
        knows_waits = job.steady_state or (job.by_parts and job.by_parts.waiting_seconds)
        is_fit = job.device_count == 1 and not job.busy and knows_waits
        if not accelerator or not is_fit:
            continue
        if step := _estimate_step(run, run.settings, operations, accelerator):
            return math.sqrt(job.median_step_seconds / step.seconds)
    return 1.0


def _loading_factor(run: Job, name: str) -> float:
    """Return the ratio of loading times on a rented machine and here.

    A loader's workers share the cores. An unknown machine counts as having this machine's cores.
    """
    cpu, machine = run.host.cpu, cheapest_machine(name)
    if cpu is None or machine is None or not run.settings or run.settings.workers is None:
        return 1.0
    workers, cores = max(1, run.settings.workers), allowed_cores(cpu)
    rented_cores = max(1, machine.vcpus // 2)  # each has two threads
    working, working_rented = min(workers, cores), min(workers, rented_cores)
    loader = run.loader
    if loader is None or not loader.tried_workers:
        return working / working_rented
    known = min(working_rented, cores)  # more share the cores here, and would not there
    seconds = loader.batch_seconds_by(known) * known / working_rented
    return seconds / loader.batch_seconds_by(working)


@dataclass(frozen=True)
class RentalOption:
    accelerator: Accelerator
    needed_bytes: int | None
    """Memory that a step takes, or None if it is not known."""
    fits: Literal["yes", "perhaps", "no"] | None
    terms: GpuTerms
    estimate: Estimate | None


def renting(
    run: Job,
    stays: SpeedupBounds,
    rest_share: float,
    settings: Comparing,
    measured: Sequence[Job],
) -> tuple[tuple[RentalOption, ...], str | None]:
    """Return each accelerator in the settings with its estimate, or why there is none.

    `rest_share` is that of an epoch's step which none of its parts takes. Estimates are scaled by
    `measured` times of the same training on a GPU.
    """
    options, not_counted, operations = [], None, run.operations
    if operations and run.loading_seconds is not None:
        job = EstimatedJob(run, operations, stays, rest_share, measured)
        for name in settings.accelerators:
            accelerator = accelerators()[name]
            options.append(
                RentalOption(
                    accelerator=accelerator,
                    needed_bytes=needed_bytes(operations),
                    fits=fits(operations, accelerator.memory_gib),
                    terms=terms_of(name, settings),
                    estimate=job.on(accelerator),
                )
            )
    elif settings.accelerators:
        not_counted = run.not_counted or (
            "its loading was not timed" if operations else "a step's operations were not counted"
        )
    return tuple(options), not_counted
