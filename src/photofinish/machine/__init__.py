"""The machine: CPU, accelerators, fingerprint, memory, load, energy.

The limits of a CUDA graph are defined here, where training can import them without psutil.
"""

MOST_BYTES = 256 << 20
"""Limit for the batches of one graph."""
MOST_OPERATIONS = 4000
"""Limit for one graph: each operation costs memory and capture time."""
OPERATIONS_A_LAYER = 8
"""Estimate for a training step: forward, backward and the update."""


def most_steps_at_once(image_count: int, batch_size: int, image_bytes: int, layers: int = 1) -> int:
    """Return the most steps that a graph may hold, for a network with at least `layers` layers."""
    by_size = MOST_BYTES // (batch_size * image_bytes)
    return max(
        1, min(image_count // batch_size, by_size, MOST_OPERATIONS // (OPERATIONS_A_LAYER * layers))
    )
