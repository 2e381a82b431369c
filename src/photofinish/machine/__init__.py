"""The machine: CPU, accelerators, fingerprint, memory, load, energy. The number of steps of a CUDA graph is defined
here, where training can import it without psutil."""

MOST_BYTES = 256 << 20
"""of the batches of one graph"""
MOST_OPERATIONS = 4000
"""of one graph, which takes memory and time to make for each"""
OPERATIONS_A_LAYER = 8
"""of a training step, about: there and back, and what updates its weights"""


def most_steps_at_once(image_count: int, batch_size: int, image_bytes: int, layers: int = 1) -> int:
    """The most steps that a graph may hold, of a network with at least so many layers."""
    by_size = MOST_BYTES // (batch_size * image_bytes)
    return max(
        1, min(image_count // batch_size, by_size, MOST_OPERATIONS // (OPERATIONS_A_LAYER * layers))
    )
