"""Time the batches of a DataLoader in this process, without steps between them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from itertools import chain, count
from typing import Any

from torch.utils.data import DataLoader

SAMPLES, _LEAST_BATCHES = 200, 4
_SHARE, _LEAST_SECONDS, _MOST_SECONDS = 0.1, 0.5, 10.0
"""Share of a training's time that measuring may take, with its lower and upper limit.

By hand, as are the numbers of samples and batches.
"""


def seconds_for(training_seconds: float) -> float:
    """Return how long measuring a loader may take after a training."""
    return min(_MOST_SECONDS, max(_LEAST_SECONDS, _SHARE * training_seconds))


def affordable(load: Callable[[], Any], most: int, seconds: float) -> int:
    """Return how many samples of a batch there is time for, from 1 to `most`."""
    began_seconds = time.perf_counter()
    load()
    sample_seconds = time.perf_counter() - began_seconds
    if _LEAST_BATCHES * sample_seconds > _MOST_SECONDS / 2:
        raise TimeoutError(f"a sample takes {sample_seconds:.1f} s")
    return max(1, min(most, int(seconds / _LEAST_BATCHES / sample_seconds)))


def time_loader(loader: Any, training_seconds: float) -> dict[str, Any] | None:
    """Return the fields of `LoaderTimes` for a DataLoader of rows, or None for another loader."""
    if not isinstance(loader, DataLoader) or not loader.batch_size:
        return None
    if not hasattr(loader.dataset, "__len__") or loader.collate_fn is None:
        return None
    dataset: Any = loader.dataset
    seconds = seconds_for(training_seconds) / 2
    most = min(loader.batch_size, len(dataset))
    size = affordable(lambda: dataset[0], most, seconds)
    batches = DataLoader(dataset, size, shuffle=True, collate_fn=loader.collate_fn, drop_last=True)
    return time_batches(lambda _: iter(batches), size, loader.batch_size, seconds)


def time_batches(
    load: Callable[[int], Iterator[Any]], size: int, batch_size: int, seconds: float
) -> dict[str, Any]:
    """Load batches of `size` samples, epoch by epoch, and return the time of `batch_size`.

    It is the median, so that a batch that waited for a core counts little.
    """
    batches = chain.from_iterable(map(load, count()))
    next(batches)
    batch_seconds: list[float] = []
    began_at = ended_at = time.perf_counter()
    while len(batch_seconds) * size < SAMPLES:
        next(batches)
        batch_seconds.append(time.perf_counter() - ended_at)
        ended_at += batch_seconds[-1]
        if (ended_at - began_at) * (1 + 1 / len(batch_seconds)) > seconds:
            break
    return {
        "samples": size * len(batch_seconds),
        "batch_size": batch_size,
        "whole_seconds": statistics.median(batch_seconds) * batch_size / size,
    }
