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
LAUNCH_SECONDS = 69e-6
"""Time for the host to launch one operator, step by step."""
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


@dataclass(frozen=True)
class StepEstimate:
    seconds: float
    within: float
    """Factor that nine of ten such estimates are within."""
    launch_seconds: float
    """Host time to launch the step's kernels; 0 for captured steps."""

    @property
    def spread(self) -> tuple[float, float, float]:
        """Seconds of a fast step, the estimate, and of a slow step."""
        return self.seconds / self.within, self.seconds, self.seconds * self.within


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
    kernel_seconds = CAPTURED_LAUNCH_SECONDS if is_captured else LAUNCH_SECONDS
    # The CPU launched the same operators in its step, and computed them, too.
    launch_seconds = min(operations.kernels * kernel_seconds, cpu_step_seconds)
    device_seconds = estimated_device_seconds(operations, accelerator, precision, tflops)
    step_seconds = max(device_seconds, launch_seconds)
    fitted_seconds = device_seconds if is_captured else step_seconds
    is_published = accelerator.kind == "cuda" and precision != "fp64"
    is_long = is_published and fitted_seconds >= LONG_STEP_SECONDS
    within = LONG_STEPS_WITHIN if is_long else OTHERS_WITHIN
    return StepEstimate(step_seconds, within, 0.0 if is_captured else launch_seconds)


def estimated_device_seconds(
    operations: Operations, accelerator: Accelerator, precision: str, tflops: float
) -> float:
    """Return the time of arithmetic and memory traffic, however fast the host launches it."""
    factor = TIMES_THE_ARITHMETIC[_FITTED_AS.get(precision, precision)]
    arithmetic_seconds = factor * operations.flops / (tflops * _TERA)
    saved_seconds = operations.saved_tensor_bytes / (accelerator.memory_gb_per_s * _GB)
    return arithmetic_seconds + TIMES_WHAT_IS_SAVED * saved_seconds
