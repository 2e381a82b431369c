"""What a data sheet says of a training step: the time that no PyTorch program beats there, and about how long it takes.

* Each product of matrices or convolution takes its arithmetic, the fewest operations at the peak rate of the precision,
  or what it reads and writes, whichever is longer. Cards clock themselves above the boost clock that a data sheet
  computes with, GeForce cards by up to a fifth: a quarter is allowed. What fits into the cache may lie there already,
  and stay there: only what a kernel reads or writes beyond that counts.
* They run one after the other, as PyTorch hands them to a device, each for half a microsecond at least. That
  is assumed, not measured: a fourth of what a node of a CUDA graph is thought to take (docs/performance.md).
* After them the optimiser reads gradients, weights and its own state, and writes all but the gradients.
* Meanwhile a loader's batches cross the link from the host, at its peak rate.

Nothing else counts: all that happens in between might be done on the way. A real step takes longer, for kernels take
microseconds to start, wait, and read and write far more.

What a step would take *about* is told beside it, by constants that were fitted on published training speeds:
`python -m benchmarks.published.fit` fits them, and finds how far off they are, each accelerator estimated by the
others. They are of steps that are long against the start of a kernel, of convolutional networks and transformers, and
nearly all on NVIDIA's cards: nothing is told of others.
"""

from __future__ import annotations

from dataclasses import dataclass

from photofinish.params.compare import Accelerator
from photofinish.results.measurements import Operations

ABOVE_BOOST_CLOCK = 1.25
LEAST_KERNEL_SECONDS = 0.5e-6
_VALUE_BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}
_GB, _MIB, _TERA = 1e9, 2**20, 1e12

TIMES_THE_ARITHMETIC = {"fp32": 0.87, "tf32": 0.81, "fp16": 0.82}
"""of what its operations, as usually counted, take at the peak rate"""
TIMES_WHAT_IS_KEPT = 17.4
"""of what it takes to move all that is kept for the backward pass once, at the memory's peak rate"""
HALF_WITHIN, NINE_OF_TEN_WITHIN = 1.18, 1.44
"""factors"""
SHORTEST_SECONDS = 0.03
"""of the published steps"""


@dataclass(frozen=True)
class Floor:
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
        """Of all together."""
        return max(self.computing_seconds, self.link_seconds)

    @property
    def held_by(self) -> str:
        """What takes most of it."""
        if self.link_seconds > self.computing_seconds:
            return "the link"
        parts = {"arithmetic": self.arithmetic_seconds, "memory": self.memory_seconds, "kernels": self.kernel_seconds}
        return max(parts, key=lambda name: parts[name])


def least_step(operations: Operations, accelerator: Accelerator, precision: str) -> Floor:
    """Of the step that was counted."""
    return least_epoch(operations, accelerator, precision, operations.images)


def least_epoch(operations: Operations, accelerator: Accelerator, precision: str, images: int) -> Floor:
    """Of steps on so many images in all, as large as the one that was counted, but for the last.

    What a smaller last step moves isn't counted, for it may stay in the cache.
    """
    tflops, link = accelerator.best_tflops(precision), accelerator.link_gb_per_s
    flops_a_second = tflops * _TERA * ABOVE_BOOST_CLOCK if tflops else None
    cache_bytes, bytes_a_second = accelerator.cache_mib * _MIB, accelerator.memory_gb_per_s * _GB
    optimiser_seconds = _optimiser_bytes(operations, cache_bytes) / bytes_a_second
    computing_seconds, arithmetic_seconds, memory_seconds = optimiser_seconds, 0.0, optimiser_seconds
    for product in operations.products:
        moved_bytes = sum(
            max(0.0, values * _VALUE_BYTES[precision] - cache_bytes)
            for values in (product.read_values, product.written_values)
        )
        own_arithmetic_seconds = product.count * product.least_flops / flops_a_second if flops_a_second else 0.0
        own_memory_seconds = product.count * moved_bytes / bytes_a_second
        computing_seconds += max(own_arithmetic_seconds, own_memory_seconds, product.count * LEAST_KERNEL_SECONDS)
        arithmetic_seconds += own_arithmetic_seconds
        memory_seconds += own_memory_seconds
    whole_steps, rest = divmod(images / operations.images, 1)
    return Floor(
        whole_steps * computing_seconds + rest * arithmetic_seconds,
        (whole_steps + rest) * arithmetic_seconds,
        whole_steps * memory_seconds,
        whole_steps * LEAST_KERNEL_SECONDS * sum(product.count for product in operations.products),
        (whole_steps + rest) * operations.batch_bytes / (link * _GB) if link else 0.0,
    )


def _optimiser_bytes(operations: Operations, cache_bytes: float) -> float:
    changed_bytes = operations.gradient_bytes + operations.optimizer_bytes  # as many weights have a gradient
    read_bytes = operations.gradient_bytes + changed_bytes
    return max(0.0, read_bytes - cache_bytes) + max(0.0, changed_bytes - cache_bytes)


def least_memory_bytes(operations: Operations, precision: str) -> int:
    """What lies in its memory at least, at the end of a forward or of a backward pass."""
    passing_bytes = max(operations.kept_values * _VALUE_BYTES[precision], operations.gradient_bytes)
    images_bytes = operations.batch_bytes + operations.resident_bytes
    return operations.parameter_bytes + operations.optimizer_bytes + passing_bytes + images_bytes


def estimated_step_seconds(operations: Operations, accelerator: Accelerator, precision: str) -> float | None:
    """About; None where nothing like it was fitted."""
    kind = "fp16" if precision == "bf16" else precision
    tflops = accelerator.tflops.get(precision)
    if accelerator.kind != "cuda" or tflops is None:
        return None
    arithmetic_seconds = TIMES_THE_ARITHMETIC[kind] * operations.flops / (tflops * _TERA)
    memory_seconds = TIMES_WHAT_IS_KEPT * operations.all_kept_bytes / (accelerator.memory_gb_per_s * _GB)
    seconds = arithmetic_seconds + memory_seconds
    return seconds if seconds >= SHORTEST_SECONDS else None
