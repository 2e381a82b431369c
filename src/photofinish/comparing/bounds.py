"""Bounds: how many times as fast a training on the CPU could become in its machine at most, whatever computes, and what
each accelerator's data sheet says that it takes at least. docs/before-you-rent.md explains them.

Only what is sure to stay on the CPU counts: of an epoch, its batches, as quick as they are loaded with no step between
(while the CPU computes as well, loading is slower); of the job, start-up without its warm-up besides. What would
perhaps stay isn't counted: handing out each operation, which may be recorded once for all steps; checkpoints and
readings of the machine, of which shorter epochs need fewer; loading for validation, which isn't timed by itself.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from photofinish.comparing.device_results import Recorded, StepCosts, spread
from photofinish.comparing.diagnosis import RUN_MARGIN, why_nothing_is_told
from photofinish.comparing.speedups import BUSY
from photofinish.config.compare import Accelerator
from photofinish.results.measurements import Operations
from photofinish.wording import at_most, seconds

HIGH = 20.0
"""times as fast: a bound above says nothing against a GPU"""
ABOVE_BOOST_CLOCK = 1.25
LEAST_KERNEL_SECONDS = 0.5e-6
_VALUE_BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}
_GB, _MIB, _TERA = 1e9, 2**20, 1e12

TIMES_THE_ARITHMETIC = {"fp32": 0.87, "tf32": 0.81, "fp16": 0.82}
"""of what its operations, as usually counted, take at the peak rate"""
TIMES_WHAT_IS_KEPT = 17.4
"""of what it takes to move all that is kept for the backward pass once, at the memory's peak rate"""
NINE_OF_TEN_WITHIN = 1.44
"""a factor, of estimates"""
SHORTEST_SECONDS = 0.03
"""of the published steps"""


@dataclass(frozen=True)
class SpeedupBound:
    """Bound of a speed-up: the whole time over the time that is sure to stay."""

    whole_seconds: float
    """of slow ones, where there are several"""
    staying_seconds: float
    """of quick ones, in a run that is quicker by RUN_MARGIN; half of a start-up, for nothing watches how busy the
    machine is meanwhile"""
    measured_seconds: float
    """the same as it was measured"""

    @property
    def at_most(self) -> float:
        """Largest speed-up, 1 at least."""
        return max(1.0, self.whole_seconds / self.staying_seconds) if self.staying_seconds else math.inf

    @property
    def told(self) -> str:
        """`1.34 times`: never less than it is."""
        return f"{at_most(self.at_most)} times"

    @property
    def evidence(self) -> str:
        """`at least 4.00 s of 5.00 s`: what stays, of the whole."""
        return f"at least {seconds(min(self.staying_seconds, self.whole_seconds))} of {seconds(self.whole_seconds)}"


@dataclass(frozen=True)
class SpeedupBounds:
    """The bounds of one training on the CPU, or why there are none."""

    epoch: SpeedupBound | None = None
    """None where nothing of it is sure to stay"""
    job: SpeedupBound | None = None
    job_if_resident: SpeedupBound | None = None
    """with `input: resident`, which leaves nothing of an epoch: where it takes a loader, and images would fit"""
    untold: str | None = None
    """what keeps the figures from carrying a bound"""

    @property
    def sentence(self) -> str | None:
        """The bounds with what they rest on; None where there are none."""
        if self.job is None:
            return None
        epoch, job = self.epoch, self.job
        if epoch and epoch.at_most <= HIGH:
            lifted = ""
            if self.job_if_resident:
                left = f"the job's would then be {self.job_if_resident.told}"
                lifted = f" (`input: resident` would lift that, where the images fit into the GPU's memory; {left})"
            return (
                f"Even a GPU that computes in no time would make an epoch at most {epoch.told} as fast in "
                f"this machine, and the whole job at most {job.told}: {epoch.evidence} an epoch are spent "
                f"loading its data, which stays on the CPU{lifted}."
            )
        what, high = "start-up", ""
        if epoch:
            what, high = "start-up and loading", f" ({epoch.told} as fast is its bound)"
        if job.at_most > HIGH:
            return (
                f"Nothing measured here keeps a GPU from being much faster{high}: {what}, which stays on the CPU, is "
                f"{job.evidence} of the whole job, whose bound is {job.told} as fast."
            )
        return (
            f"Nothing measured here keeps a GPU from making an epoch much faster{high}, but even one that computes in "
            f"no time would make the whole job at most {job.told} as fast in this machine: {job.evidence} "
            f"are {what}, which stays on the CPU."
        )


def ceiling(run: Recorded) -> SpeedupBounds:
    """Return the bounds of a training on the CPU, or why its figures carry none."""
    timings, costs, untold = run.timings, run.costs, why_nothing_is_told(run)
    if untold or costs is None:
        return SpeedupBounds(untold=untold)
    epochs, startup_seconds = len(timings.epochs), timings.startup_seconds - timings.warm_up_seconds
    _, slow_job_seconds = spread(timings.end_to_end_seconds)
    startup_alone = SpeedupBound(slow_job_seconds, startup_seconds / BUSY, startup_seconds)
    settings = run.record.experiment.input
    if settings.name == "resident":
        return SpeedupBounds(job=startup_alone)
    loading_seconds = costs.steps_per_epoch * costs.batch_alone_seconds
    least_seconds = _least_loading_seconds(costs, settings.workers) / RUN_MARGIN
    _, slow_step_seconds = costs.epoch_share_spread
    return SpeedupBounds(
        epoch=SpeedupBound(costs.steps_per_epoch * slow_step_seconds, least_seconds, loading_seconds),
        job=SpeedupBound(
            slow_job_seconds,
            startup_alone.staying_seconds + epochs * least_seconds,
            startup_seconds + epochs * loading_seconds,
        ),
        job_if_resident=startup_alone if costs.attribution.resident else None,
    )


def _least_loading_seconds(costs: StepCosts, workers: int) -> float:
    """Return the seconds of an epoch's batches if all after the first are as quick as the quickest tenth.

    What else goes on in a machine only ever slows a batch, so of two passes that took the same the quicker one counts.
    """
    alone, waiting = costs.attribution.batch_alone_seconds, costs.attribution.parts.waiting_seconds
    first_seconds = min(alone[0], waiting[0])
    passes = [alone] if costs.loads_ahead else [alone, waiting]
    least_seconds = min(spread(_rounds(each[1:], max(1, workers)) or [first_seconds])[0] for each in passes)
    return max(first_seconds, least_seconds) + (costs.steps_per_epoch - 1) * least_seconds


def _rounds(values: Sequence[float], size: int) -> list[float]:
    """The means of so many in a row: several workers' batches come at once, and only a round of them tells their pace.

    Of fewer, their own mean.
    """
    rounds = [values[start : start + size] for start in range(0, len(values) - size + 1, size)]
    return [statistics.fmean(each) for each in rounds or [values] if each]


@dataclass(frozen=True)
class MinimumStepTime:
    """The least seconds, of a step or of several."""

    computing_seconds: float
    """of its products and the optimiser, one after the other: no less than each of the next three"""
    arithmetic_seconds: float
    """of all products; 0 where the rate isn't known"""
    memory_seconds: float
    kernel_seconds: float
    """of as many kernels that do nothing"""
    link_seconds: float

    @property
    def seconds(self) -> float:
        """Seconds of all together."""
        return max(self.computing_seconds, self.link_seconds)

    @property
    def held_by(self) -> str:
        """Name of the part that takes most of it."""
        if self.link_seconds > self.computing_seconds:
            return "the link"
        parts = {"arithmetic": self.arithmetic_seconds, "memory": self.memory_seconds, "kernels": self.kernel_seconds}
        return max(parts, key=lambda name: parts[name])


def least_steps(
    operations: Operations, accelerator: Accelerator, precision: str, images: int | None = None
) -> MinimumStepTime:
    """Return the least time of the counted step, or of enough steps for so many images.

    Products of matrices and convolutions run one after the other, as PyTorch hands them to a device, and then the
    optimiser. What fits into the cache may lie and stay there, as all may that a smaller last step moves: only what a
    kernel reads or writes beyond that counts.
    """
    flops_a_second = (accelerator.best_tflops(precision) or math.inf) * _TERA * ABOVE_BOOST_CLOCK
    cache_bytes, bytes_a_second = accelerator.cache_mib * _MIB, accelerator.memory_gb_per_s * _GB
    link_bytes_a_second = (accelerator.link_gb_per_s or math.inf) * _GB
    optimiser_seconds = _optimiser_bytes(operations, cache_bytes) / bytes_a_second
    computing_seconds, arithmetic_seconds, memory_seconds = optimiser_seconds, 0.0, optimiser_seconds
    for product in operations.products:
        moved_bytes = sum(
            max(0.0, values * _VALUE_BYTES[precision] - cache_bytes)
            for values in (product.read_values, product.written_values)
        )
        own_arithmetic_seconds = product.count * product.least_flops / flops_a_second
        own_memory_seconds = product.count * moved_bytes / bytes_a_second
        computing_seconds += max(own_arithmetic_seconds, own_memory_seconds, product.count * LEAST_KERNEL_SECONDS)
        arithmetic_seconds += own_arithmetic_seconds
        memory_seconds += own_memory_seconds
    whole_steps, rest = divmod((images or operations.images) / operations.images, 1)
    return MinimumStepTime(
        whole_steps * computing_seconds + rest * arithmetic_seconds,
        (whole_steps + rest) * arithmetic_seconds,
        whole_steps * memory_seconds,
        whole_steps * LEAST_KERNEL_SECONDS * sum(product.count for product in operations.products),
        (whole_steps + rest) * operations.batch_bytes / link_bytes_a_second,
    )


def _optimiser_bytes(operations: Operations, cache_bytes: float) -> float:
    """It reads gradients, weights and its own state, and writes all but the gradients."""
    changed_bytes = operations.gradient_bytes + operations.optimizer_bytes  # as many weights have a gradient
    read_bytes = operations.gradient_bytes + changed_bytes
    return max(0.0, read_bytes - cache_bytes) + max(0.0, changed_bytes - cache_bytes)


def least_memory_bytes(operations: Operations, precision: str) -> int:
    """Return the least memory that a step takes, at the end of its forward or backward pass."""
    passing_bytes = max(operations.saved_activations * _VALUE_BYTES[precision], operations.gradient_bytes)
    images_bytes = operations.batch_bytes + operations.resident_bytes
    return operations.parameter_bytes + operations.optimizer_bytes + passing_bytes + images_bytes


def estimated_step_seconds(operations: Operations, accelerator: Accelerator, precision: str) -> float | None:
    """About; None where nothing like it was fitted."""
    kind = "fp16" if precision == "bf16" else precision
    tflops = accelerator.tflops.get(precision)
    if accelerator.kind != "cuda" or tflops is None:
        return None
    arithmetic_seconds = TIMES_THE_ARITHMETIC[kind] * operations.flops / (tflops * _TERA)
    memory_seconds = TIMES_WHAT_IS_KEPT * operations.saved_tensor_bytes / (accelerator.memory_gb_per_s * _GB)
    step_seconds = arithmetic_seconds + memory_seconds
    return step_seconds if step_seconds >= SHORTEST_SECONDS else None
