"""Measure the parts of any DataLoader: batches with timed parts, in turns with plain batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import chain, count
from typing import Any

from torch.utils.data import DataLoader

from .stopwatch import COLLATING, REST, Stopwatch, Timed
from .taps import Taps

SAMPLES, _LEAST_BATCHES = 200, 4
_SHARE, _LEAST_SECONDS, _MOST_SECONDS = 0.1, 0.5, 10.0
"""Share of a training's time that measuring may take, with its lower and upper limit.

By hand, as are the numbers of samples and batches.
"""
Pass = Callable[[int], Iterator[Any]]
"""Function that returns the batches of an epoch."""


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


def parts_of_loader(loader: Any, training_seconds: float) -> dict[str, Any] | None:
    """Return the fields of `LoaderTimes` for a DataLoader of rows, or None for another loader."""
    if not isinstance(loader, DataLoader) or not loader.batch_size:
        return None
    if not hasattr(loader.dataset, "__len__") or loader.collate_fn is None:
        return None
    return _of_rows(loader, seconds_for(training_seconds) / 2)


def _of_rows(loader: DataLoader[Any], seconds: float) -> dict[str, Any]:
    dataset: Any = loader.dataset
    collate: Any = loader.collate_fn
    most = min(loader.batch_size or 1, len(dataset))
    size = affordable(lambda: dataset[0], most, seconds)

    def batches(dataset: Any, collate: Any) -> Iterator[Any]:
        return iter(DataLoader(dataset, size, shuffle=True, collate_fn=collate, drop_last=True))

    watch = Stopwatch(REST)
    with Taps(watch) as taps:
        timed = taps.timed_data_set(dataset), Timed(watch, COLLATING, collate)
        passes = (lambda _: batches(*timed)), (lambda _: batches(dataset, collate))
        return take_in_turns(watch, *passes, size, loader.batch_size or 1, seconds)


def take_in_turns(
    watch: Stopwatch, timed_pass: Pass, plain_pass: Pass, size: int, batch_size: int, seconds: float
) -> dict[str, Any]:
    """Load batches of `size` samples, and return times of batches of `batch_size`."""
    began_seconds = time.perf_counter()
    # From different epochs, because files that were just read are in memory.
    timed = chain.from_iterable(map(timed_pass, count(0, 2)))
    plain = chain.from_iterable(map(plain_pass, count(1, 2)))
    next(timed)
    next(plain)
    whole, taken = Stopwatch(REST), 0
    for taken in count(1):
        with watch.running():
            next(timed)
        with whole.running():
            next(plain)
        passed = time.perf_counter() - began_seconds
        if taken * size >= SAMPLES or passed * (taken + 1) / taken > seconds:
            break
    scale = batch_size / (size * taken)
    return {
        "samples": size * taken,
        "batch_size": batch_size,
        "parts": longest_first({name: scale * each for name, each in watch.seconds().items()}),
        "whole_seconds": scale * sum(whole.seconds().values()),
    }


def longest_first(parts: dict[str, float]) -> dict[str, float]:
    return dict(sorted(parts.items(), key=lambda part: -part[1]))
