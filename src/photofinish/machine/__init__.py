"""The machine: CPU, accelerators, fingerprint, memory, load, energy."""

MOST_BYTES = 256 << 20
"""Maximum size of the batches of one CUDA graph."""
MOST_OPERATIONS = 4000
"""Maximum number of operations of one CUDA graph: each takes memory, and time to capture."""
OPERATIONS_A_LAYER = 8
"""Approximate number of operations per layer in a training step."""


def most_steps_at_once(image_count: int, batch_size: int, image_bytes: int, layers: int = 1) -> int:
    """Return how many steps one CUDA graph holds. The network has at least `layers` layers.

    Defined here, where training can import it without psutil.
    """
    by_size = MOST_BYTES // (batch_size * image_bytes)
    by_operations = MOST_OPERATIONS // (OPERATIONS_A_LAYER * layers)
    return max(1, min(image_count // batch_size, by_size, by_operations))
