"""Estimates of a step on an accelerator, from its data sheet and the counted step: time and memory.

A step takes as long as the device needs to compute it, or as the host needs to launch it. The
constants are fitted on published training speeds. Those of small kernels were chosen on 30 steps of
one H100: `python -m benchmarks.published.fit`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from photofinish.config.compare import Accelerator
from photofinish.config.precisions import PRECISIONS
from photofinish.results.job import JobSettings
from photofinish.results.measurements import Operations

TIMES_WHAT_IS_SAVED = 16.25
"""Ratio of memory-bound time to moving all saved tensors once, fitted on published speeds."""
LAUNCH_SECONDS = 28e-6, 69e-6, 126e-6
"""Time for a fast, a typical and a slow host to launch one operator without a CUDA graph.

Typical is the median of the published steps whose time launching decides, and slow is their
slowest. The fast one was an H100's.
"""
_NEWEST_YEAR, NEWEST_LAUNCH_SECONDS = 2025, 12.5e-6
"""Year of the first GPU whose host may be faster, and time of an RTX 5090's."""
OTHER_CPU = 2.0
"""Factor by which a rented CPU may be faster or slower than the one here.

Published hosts launch in half to twice the typical time, and one decoded JPEG files in 1.6 times
the time of the CPU on which this was written (torchcodec#1620). If it is too small, ranges miss.
"""
CAPTURED_KERNEL_SECONDS = 4e-6
"""Time that each operator in a CUDA graph adds to the device's time: chosen on an H100."""
TIME_STEP_SECONDS = 3e-6, 10e-6, 30e-6
"""Time of one time step of a recurrent layer: fast, typical and slow.

An LSTM of width 256 took 7 µs captured and 27 µs launched, and a GRU of width 32 took 3 µs.
"""
CONVOLUTION_SECONDS = 40e-6
"""Time of each fp32 convolution on CUDA beside its arithmetic: chosen on an H100."""
LONG_STEP_SECONDS = 0.03  # by hand; estimates of shorter steps are off by up to 1.94, not 1.6
LONG_STEPS_WITHIN, OTHERS_WITHIN = 1.6, 2.5
"""Factors within which nine of ten estimates are: for long steps on CUDA, and for all others.

Published short steps on CUDA were within 1.94, and steps on ROCm within 2.10.
"""
CONTEXT_SECONDS = 0.4, 2.0, 4.0
"""Time to start a GPU in a process: fast, typical and slow.

An H100 took 0.4 to 1.1 s longer than its machine's CPU. Users measured 1 to 2 s (pytorch#39005),
over 2 s (discuss.pytorch.org/t/82521) and 4 s (pytorch#22583).
"""
_GIB = 2**30
RESERVED_FACTOR = 1.01
"""Factor on the memory that a replayed step reserves: `python -m benchmarks.published.memory`."""
RESERVED_WITHIN = 1.08
"""Room for the prediction's error, by hand: published ones are within 1.04."""
_BESIDE_BYTES = _GIB // 2 + 2 * 32 * 2**20
"""Memory of the driver, over 0.3 GiB (pytorch#107667), and of cuBLAS on a Hopper."""
_USABLE_SHARE = 0.91
"""Least share of a GPU's memory that programs get: 14.56 of a T4's 16 GiB (CatVTON#133)."""
_TERA, _GB = 1e12, 1e9
Spread = tuple[float, ...]
"""Times of a fast step, an estimated step and a slow step. Nine of ten are in this range."""


@dataclass(frozen=True)
class StepEstimate:
    spread: Spread
    launches: Spread
    """Host times to launch the step's kernels, or 0 for captured steps."""
    is_launch_bound: bool
    """True if launching takes longer than computing, without a CUDA graph."""

    @property
    def seconds(self) -> float:
        return self.spread[1]


def estimate_step(
    operations: Operations,
    accelerator: Accelerator,
    precision: str,
    cpu_step_seconds: float = math.inf,
    *,
    is_captured: bool = False,
) -> StepEstimate | None:
    """Return the estimate of a step, or None.

    There are no estimates for kinds of accelerators that published speeds don't cover, nor for
    steps with operators that can't be counted. Launching is limited by the quickest step on the
    CPU.
    """
    precision = accelerator.effective_precision("fp64" if operations.in_double else precision)
    tflops = accelerator.tflops.get(precision)
    if accelerator.kind not in ("cuda", "rocm") or tflops is None or operations.without_formula:
        return None
    device_seconds = estimated_device_seconds(operations, accelerator, precision, tflops)
    launches: Spread = (0.0, 0.0, 0.0)
    if is_captured:
        device_seconds += operations.kernels * CAPTURED_KERNEL_SECONDS
    else:
        # A step on the CPU launches the same operators, and also computes them.
        fast, middle, slow = LAUNCH_SECONDS
        fast = NEWEST_LAUNCH_SECONDS if accelerator.year >= _NEWEST_YEAR else fast
        launches = (
            min(operations.kernels * fast, cpu_step_seconds / OTHER_CPU),
            min(operations.kernels * middle, cpu_step_seconds),
            min(operations.kernels * slow, cpu_step_seconds * OTHER_CPU),
        )
    is_published = accelerator.kind == "cuda" and precision != "fp64"
    is_long = max(device_seconds, launches[1]) >= LONG_STEP_SECONDS
    within = LONG_STEPS_WITHIN if is_published and is_long else OTHERS_WITHIN
    ends = zip((1 / within, 1.0, within), launches, TIME_STEP_SECONDS, strict=True)
    spread = tuple(
        max(factor * device_seconds, launch_seconds) + operations.time_steps * time_step_seconds
        for factor, launch_seconds, time_step_seconds in ends
    )
    return StepEstimate(spread, launches, launches[1] > device_seconds)


def are_captured(settings: JobSettings | None, operations: Operations) -> bool:
    """Return True if these settings capture the counted step. Scripts have no settings."""
    if settings is None or settings.batch_size != operations.images:
        return False
    return settings.is_captured


def with_batch(operations: Operations, images: int) -> Operations:
    factor, fixed = images / operations.images, operations.fixed_bytes or 0
    numbers = {
        name: round(factor * getattr(operations, name)) for name in ("flops", "saved_tensor_bytes")
    }
    for name in ("peak_allocated_bytes", "peak_reserved_bytes"):
        peak = getattr(operations, name)
        numbers[name] = None if peak is None else round(fixed + factor * (peak - fixed))
    return operations.model_copy(update={"images": images, **numbers})


def estimated_device_seconds(
    operations: Operations, accelerator: Accelerator, precision: str, tflops: float
) -> float:
    """Return the device's time for arithmetic and memory traffic, without launching."""
    factor = PRECISIONS[precision].times_the_arithmetic
    arithmetic_seconds = factor * operations.flops / (tflops * _TERA)
    saved_bytes = operations.passes * operations.saved_tensor_bytes
    moved_bytes = TIMES_WHAT_IS_SAVED * saved_bytes + operations.optimizer_bytes
    seconds = arithmetic_seconds + moved_bytes / (accelerator.memory_gb_per_s * _GB)
    if accelerator.kind == "cuda" and precision == "fp32":
        seconds += operations.convolutions * CONVOLUTION_SECONDS
    return seconds


def needed_bytes(operations: Operations) -> int | None:
    """Return the memory that a step's process takes on a GPU, or None of an older record."""
    if operations.peak_reserved_bytes is None:
        return None
    return round(RESERVED_FACTOR * operations.peak_reserved_bytes) + _BESIDE_BYTES


def fits(operations: Operations, memory_gib: float) -> Literal["yes", "perhaps", "no"] | None:
    """Return "no" if the step's tensors alone don't fit, or "yes" with room for an error."""
    needed = needed_bytes(operations)
    allocated_bytes = operations.peak_allocated_bytes
    if needed is None or allocated_bytes is None:
        return None
    memory_bytes = memory_gib * _GIB
    if allocated_bytes + _BESIDE_BYTES > memory_bytes:
        return "no"
    return "yes" if RESERVED_WITHIN * needed <= _USABLE_SHARE * memory_bytes else "perhaps"
