"""What a data sheet says of a training step: the time that no program beats on that accelerator.

Three things take time, at best all at once, so that the longest of them is the bound:

* **Arithmetic**: the fewest operations, at the peak rate of the precision. Cards clock themselves above the boost clock
  that a data sheet computes with, GeForce cards by up to a fifth: a quarter is allowed.
* **Memory**: what is needed later, by another kernel, and doesn't fit into the cache, is written and read again. At
  the end of a forward pass that is what the backward pass needs; at the end of that, each weight's gradient; at the end
  of the optimiser, weights and its own state. At each of these ends the cache holds as much as it can. Nothing else is
  counted: all that happens in between might be one kernel's.
* **The link** from the host: batches that a loader makes, at its peak rate.

A real step takes longer: kernels start, wait, and read and write far more.
"""

from __future__ import annotations

from dataclasses import dataclass

from photofinish.params.accelerators import Accelerator
from photofinish.results.records import Operations

ABOVE_BOOST_CLOCK = 1.25
_VALUE_BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}
_GB, _MIB, _TERA = 1e9, 2**20, 1e12


@dataclass(frozen=True)
class Floor:
    """The least seconds, of a step or of several."""

    arithmetic_seconds: float
    """0 where the rate isn't known"""
    memory_seconds: float
    link_seconds: float

    @property
    def seconds(self) -> float:
        """Of all together."""
        return max(self.arithmetic_seconds, self.memory_seconds, self.link_seconds)

    @property
    def held_by(self) -> str:
        """Which of the three it is."""
        parts = {"arithmetic": self.arithmetic_seconds, "memory": self.memory_seconds, "the link": self.link_seconds}
        return max(parts, key=lambda name: parts[name])


def least_step(operations: Operations, accelerator: Accelerator, precision: str) -> Floor:
    """Of the step that was counted."""
    return least_epoch(operations, accelerator, precision, operations.images)


def least_epoch(operations: Operations, accelerator: Accelerator, precision: str, images: int) -> Floor:
    """Of steps on so many images in all, as large as the one that was counted, but for the last.

    What a smaller last step moves isn't counted, for it may stay in the cache.
    """
    tflops, steps = accelerator.best_tflops(precision), images / operations.images
    flops_a_second = tflops * _TERA * ABOVE_BOOST_CLOCK if tflops else None
    moved_bytes = traffic_bytes(operations, precision, accelerator.cache_mib * _MIB)
    link = accelerator.link_gb_per_s
    return Floor(
        steps * operations.least_flops / flops_a_second if flops_a_second else 0.0,
        int(steps) * moved_bytes / (accelerator.memory_gb_per_s * _GB),
        steps * operations.batch_bytes / (link * _GB) if link else 0.0,
    )


def traffic_bytes(operations: Operations, precision: str, cache_bytes: float) -> float:
    """What a step writes to memory and reads back at least, beside a cache of that size."""
    kept_bytes = operations.kept_values * _VALUE_BYTES[precision]
    read_again, gradients = operations.kept_parameter_bytes, operations.gradient_bytes
    trained = gradients + operations.optimizer_bytes  # as many bytes of parameters as of gradients are changed
    written_and_read = (
        read_again,  # read by the forward pass, after the optimiser changed them
        kept_bytes,  # written by it
        kept_bytes + read_again,  # read by the backward pass
        gradients,  # written by it
        gradients + trained,  # read by the optimiser
        trained,  # written by it
    )
    return sum(max(0.0, part_bytes - cache_bytes) for part_bytes in written_and_read)


def least_memory_bytes(operations: Operations, precision: str) -> int:
    """What lies in its memory at least, at the end of a forward or of a backward pass."""
    passing_bytes = max(operations.kept_values * _VALUE_BYTES[precision], operations.gradient_bytes)
    images_bytes = operations.batch_bytes + operations.resident_bytes
    return operations.parameter_bytes + operations.optimizer_bytes + passing_bytes + images_bytes
