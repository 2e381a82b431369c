"""Memory that a training step needs on an accelerator, and whether it fits."""

from __future__ import annotations

from typing import Literal

from photofinish.results.measurements import Operations

_GIB = 2**30
_VALUE_BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}
_DRIVER_BYTES = 2**30
"""Upper estimate of the driver's and libraries' size in the device's memory."""
_ROOM = 1.5
"""Factor on a step's least memory, for everything else in the memory."""


def least_memory_bytes(operations: Operations, precision: str) -> int:
    """Return the least memory of a step, at the end of its forward or backward pass."""
    saved_bytes = operations.saved_activations * _VALUE_BYTES[precision]
    passing_bytes = max(saved_bytes, operations.gradient_bytes)
    state_bytes = operations.parameter_bytes + operations.optimizer_bytes
    return state_bytes + passing_bytes + operations.batch_bytes + operations.resident_bytes


def fits(
    operations: Operations, precision: str, memory_gib: float
) -> Literal["yes", "perhaps", "no"]:
    """Return "no" only if that is certain, "yes" only with room to spare, else "perhaps"."""
    needed_bytes, memory_bytes = least_memory_bytes(operations, precision), memory_gib * _GIB
    if needed_bytes > memory_bytes:
        return "no"
    likely_bytes = needed_bytes + operations.gradient_bytes + operations.saved_tensor_bytes
    return "yes" if _ROOM * likely_bytes + _DRIVER_BYTES <= memory_bytes else "perhaps"
