"""Estimates of a step on an accelerator, from its data sheet and the counted step.

A step takes the longer of what the device needs and what the host needs to launch it. The constants
are fitted on published training speeds: `python -m benchmarks.published.fit`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from photofinish.config.compare import Accelerator
from photofinish.config.cuda_graphs import why_not_captured
from photofinish.config.experiment import Experiment
from photofinish.results.measurements import Operations
from photofinish.results.script_runs import ScriptSettings

TIMES_THE_ARITHMETIC = {"fp32": 0.91, "tf32": 0.89, "fp16": 0.95}
"""Seconds per second that the operations take at the peak rate, by precision."""
_FITTED_AS = {"bf16": "fp16", "fp64": "fp32"}
"""Precisions that no published speed has, and those whose constants they take."""
TIMES_WHAT_IS_SAVED = 17.2
"""Seconds per second that moving all saved tensors once takes at the peak rate."""
LAUNCH_SECONDS = 12.5e-6, 69e-6, 127e-6
"""Time for the host to launch one operator, step by step: a fast host, the usual, a slow one.

The usual is the median of the published steps that launching decides, the slow one their slowest.
Steps on an RTX 5090, which are not among them, were up to 5.5 times as fast.
"""
_OTHER_HOST = 0.5, 1.0, 2.0
"""Time of a step on the CPU of a rented machine over that on this CPU. A guess."""
CAPTURED_LAUNCH_SECONDS = 2e-6
"""The same in a CUDA graph. No published speed has it, and no GPU has measured it here."""
LONG_STEP_SECONDS = 0.03
LONG_STEPS_WITHIN, OTHERS_WITHIN = 1.54, 2.5
"""Factors that nine of ten estimates are within: CUDA's long steps, and all others.

Short steps on CUDA were within 1.96, steps on ROCm within 2.14. For captured steps that the host
decides, 2.5 is a guess.
"""
CONTEXT_SECONDS = 1.0, 2.0, 4.0
"""Time to start a GPU in a process: a fast one, the usual, a slow one.

Users measured 1 to 2 s (pytorch#39005), over 2 s (discuss.pytorch.org/t/82521) and 4 s
(pytorch#22583).
"""
_TERA, _GB = 1e12, 1e9


Spread = tuple[float, float, float]
"""Seconds of a fast step, the estimate, and of a slow step. Nine of ten steps lie between."""


@dataclass(frozen=True)
class StepEstimate:
    spread: Spread
    launch_seconds: float
    """Host time to launch the step's kernels; 0 for captured steps."""
    is_launch_bound: bool
    """True if launching, step by step, takes longer than what the device computes."""

    @property
    def seconds(self) -> float:
        return self.spread[1]


def estimate_step(
    operations: Operations,
    accelerator: Accelerator,
    experiment: Experiment | ScriptSettings,
    cpu_step_seconds: float = math.inf,
) -> StepEstimate | None:
    """Return an estimate, or None.

    There is none for kinds of accelerators that the published speeds don't fit, and for steps with
    operators that aren't counted. Launching takes no longer than the quickest step on the CPU.
    """
    precision = accelerator.effective_precision(operations.precision(experiment.precision))
    tflops = accelerator.tflops.get(precision)
    if accelerator.kind not in ("cuda", "rocm") or tflops is None or operations.without_formula:
        return None
    is_captured = operations.images == experiment.batch_size and not why_not_captured(experiment)
    device_seconds = estimated_device_seconds(operations, accelerator, precision, tflops)
    if is_captured:
        launch_seconds = operations.kernels * CAPTURED_LAUNCH_SECONDS
        launches = launch_seconds / OTHERS_WITHIN, launch_seconds, launch_seconds * OTHERS_WITHIN
    else:
        launches = _launches(operations.kernels, cpu_step_seconds)
    fitted_seconds = device_seconds if is_captured else max(device_seconds, launches[1])
    is_published = accelerator.kind == "cuda" and precision != "fp64"
    is_long = is_published and fitted_seconds >= LONG_STEP_SECONDS
    within = LONG_STEPS_WITHIN if is_long else OTHERS_WITHIN
    device = device_seconds / within, device_seconds, device_seconds * within
    fast, middle, slow = map(max, device, launches)
    if is_captured:
        return StepEstimate((fast, middle, slow), 0.0, is_launch_bound=False)
    return StepEstimate((fast, middle, slow), launches[1], launches[1] > device_seconds)


def _launches(kernels: int, cpu_step_seconds: float) -> Spread:
    """Return the time to launch a step on a fast host, the usual, and a slow one."""
    # The CPU launched the same operators in its step, and computed them, too.
    fast, middle, slow = (
        min(kernels * launch_seconds, factor * cpu_step_seconds)
        for launch_seconds, factor in zip(LAUNCH_SECONDS, _OTHER_HOST, strict=True)
    )
    return fast, middle, slow


def with_batch(operations: Operations, images: int) -> Operations:
    """Return the operations of a step with so many samples."""
    factor = images / operations.images
    scaled = ("flops", "saved_activations", "saved_tensor_bytes", "batch_bytes")
    numbers = {name: round(factor * getattr(operations, name)) for name in scaled}
    return operations.model_copy(update={"images": images, **numbers})


def estimated_device_seconds(
    operations: Operations, accelerator: Accelerator, precision: str, tflops: float
) -> float:
    """Return the time of arithmetic and memory traffic, however fast the host launches it."""
    factor = TIMES_THE_ARITHMETIC[_FITTED_AS.get(precision, precision)]
    arithmetic_seconds = factor * operations.flops / (tflops * _TERA)
    saved_seconds = operations.saved_tensor_bytes / (accelerator.memory_gb_per_s * _GB)
    return arithmetic_seconds + TIMES_WHAT_IS_SAVED * saved_seconds
