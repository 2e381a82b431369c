"""Samples and bytes in the batches of a script's loader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def samples_in_batch(batch: Any) -> int:
    """Return the length of the first array in a batch, or 0 without an array."""
    if isinstance(batch, (list, tuple)):
        batch = batch[0] if batch else None
    elif isinstance(batch, Mapping):
        batch = next(iter(batch.values()), None)
    if isinstance(batch, (list, tuple)):
        return len(batch)
    shape = getattr(batch, "shape", None)
    return int(shape[0]) if shape else 0


def all_samples(sizes: list[int], last: int | None, steps: int) -> int:
    """Return the number of samples in an epoch, from the sizes of some batches and the last."""
    if not sizes:
        return 0
    mean = sum(sizes) / len(sizes)
    return round(mean * steps if last is None else mean * (steps - 1) + last)


def bytes_on_host(batch: Any) -> int:
    """Return the size of all arrays in a batch that are in the host's memory."""
    if isinstance(batch, Mapping):
        batch = [*batch.values()]
    if isinstance(batch, list | tuple):
        return sum(map(bytes_on_host, batch))
    is_on_host = str(getattr(batch, "device", "cpu")) == "cpu"
    return int(getattr(batch, "nbytes", 0)) if is_on_host else 0
