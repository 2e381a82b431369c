"""The machine: CPU, accelerators, fingerprint, memory, load, energy."""

MOST_BYTES = 256 << 20
"""Limit of the batches of one CUDA graph."""
MOST_OPERATIONS = 4000
"""Limit of the operations of one CUDA graph: each takes memory, and time to capture."""
OPERATIONS_A_LAYER = 8
"""Operations of a training step for each layer, about."""


def most_steps_at_once(image_count: int, batch_size: int, image_bytes: int, layers: int = 1) -> int:
    """Return how many steps one CUDA graph holds, for a network with at least so many layers.

    Defined here, where training can import it without psutil.
    """
    by_size = MOST_BYTES // (batch_size * image_bytes)
    by_operations = MOST_OPERATIONS // (OPERATIONS_A_LAYER * layers)
    return max(1, min(image_count // batch_size, by_size, by_operations))
