"""What a step would take on an accelerator, about: by constants that were fitted on published training speeds.

`python -m benchmarks.published.fit` fits them, and finds how far off they are, each accelerator estimated by the
others. They are of steps that are long against the start of a kernel, of convolutional networks and transformers, and
nearly all on NVIDIA's cards: nothing is told of others.
"""

from __future__ import annotations

from photofinish.params.accelerators import Accelerator
from photofinish.results.measurements import Operations

TIMES_THE_ARITHMETIC = {"fp32": 0.87, "tf32": 0.81, "fp16": 0.82}
"""of what its operations, as usually counted, take at the peak rate"""
TIMES_WHAT_IS_KEPT = 17.4
"""of what it takes to move all that is kept for the backward pass once, at the memory's peak rate"""
HALF_WITHIN, NINE_OF_TEN_WITHIN = 1.18, 1.44
"""factors"""
SHORTEST_SECONDS = 0.03
"""of the published steps"""
_GB, _TERA = 1e9, 1e12


def estimated_step_seconds(operations: Operations, accelerator: Accelerator, precision: str) -> float | None:
    """None where nothing like it was fitted."""
    kind = "fp16" if precision == "bf16" else precision
    tflops = accelerator.tflops.get(precision)
    if accelerator.kind != "cuda" or tflops is None:
        return None
    arithmetic_seconds = TIMES_THE_ARITHMETIC[kind] * operations.flops / (tflops * _TERA)
    memory_seconds = TIMES_WHAT_IS_KEPT * operations.all_kept_bytes / (accelerator.memory_gb_per_s * _GB)
    seconds = arithmetic_seconds + memory_seconds
    return seconds if seconds >= SHORTEST_SECONDS else None
