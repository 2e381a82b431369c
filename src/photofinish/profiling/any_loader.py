"""Measure the parts of any DataLoader: batches with timed parts, in turns with plain batches."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from itertools import count, starmap, zip_longest
from typing import Any

import torch
from torch.utils.data import DataLoader, RandomSampler, default_convert

from photofinish.custom.running import run_custom_code
from photofinish.errors import UserError
from photofinish.models.custom import same_bits, tensors_in
from photofinish.profiling.stopwatch import COLLATING, REST, Stopwatch, Timed
from photofinish.profiling.taps import Taps
from photofinish.results.measurements import LoaderTimes

SAMPLES, _LEAST_BATCHES = 200, 4
_SHARE, _LEAST_SECONDS, _MOST_SECONDS = 0.1, 0.5, 10.0
"""Share of a training's time that measuring may take, with its lower and upper limit."""


def seconds_for(training_seconds: float) -> float:
    """Return how long measuring a loader may take after a training."""
    return min(_MOST_SECONDS, max(_LEAST_SECONDS, _SHARE * training_seconds))


def affordable(load: Any, sample: Any, most: int, seconds: float) -> int:
    """Return how many samples of a batch there is time for, and at most `most`."""
    began_seconds = time.perf_counter()
    load(sample)
    sample_seconds = time.perf_counter() - began_seconds
    return max(1, min(most, int(seconds / _LEAST_BATCHES / sample_seconds)))


def not_measured(error: UserError) -> LoaderTimes:
    """Return the reason for missing times, so that the training is not lost."""
    reason = str(error).rpartition("\n")[2]
    return LoaderTimes(samples=0, not_measured=f"measuring it fails ({reason})")


def custom_loader_times(loader: Any, training_seconds: float) -> LoaderTimes | None:
    """Return the parts of a custom loop's loader, or None unless it is a DataLoader of rows."""
    if not isinstance(loader, DataLoader) or not loader.batch_size:
        return None
    if not hasattr(loader.dataset, "__len__") or loader.collate_fn is None:
        return None
    try:
        with run_custom_code("a part can't be timed"):
            found = _of_rows(loader, seconds_for(training_seconds))
        changed = {"one_indexing_seconds": _one_indexing_seconds(loader)}
        return found.model_copy(update=changed)
    except UserError as error:
        return not_measured(error)


def _one_indexing_seconds(loader: DataLoader[Any]) -> float | None:
    """Return the time of a batch whose rows index the data set at once.

    Return None if the data set can't be indexed so, or gives another batch.
    """
    dataset: Any = loader.dataset
    convert: Any = default_convert
    rows = torch.randperm(len(dataset), generator=torch.Generator())[: loader.batch_size].tolist()
    few = rows[:_LEAST_BATCHES]
    try:
        with run_custom_code("rows can't be indexed at once"):
            at_once = tensors_in(convert(dataset[few]))
            one_by_one = tensors_in(loader.collate_fn([dataset[row] for row in few]))
    except UserError:  # most data sets take one row
        return None
    if not at_once or not all(starmap(same_bits, zip_longest(at_once, one_by_one))):
        return None
    batch_seconds = []
    for _ in range(_LEAST_BATCHES):
        began_seconds = time.perf_counter()
        convert(dataset[rows])
        batch_seconds.append(time.perf_counter() - began_seconds)
    return statistics.median(batch_seconds)


def _of_rows(loader: DataLoader[Any], seconds: float) -> LoaderTimes:
    dataset: Any = loader.dataset
    most = min(loader.batch_size or 1, len(dataset))
    size = affordable(dataset.__getitem__, 0, most, seconds)

    def endless(dataset: Any, collate: Any) -> Iterator[Any]:
        while True:
            sampler = RandomSampler(dataset)
            yield from DataLoader(
                dataset, size, sampler=sampler, collate_fn=collate, drop_last=True
            )

    watch = Stopwatch(REST)
    with Taps(watch) as taps:
        timed = endless(taps.timed_data_set(dataset), Timed(watch, COLLATING, loader.collate_fn))
        plain = endless(dataset, loader.collate_fn)
        return take_in_turns(watch, timed, plain, size, loader.batch_size or 1, seconds)


def take_in_turns(
    watch: Stopwatch,
    timed: Iterator[Any],
    plain: Iterator[Any],
    size: int,
    batch_size: int,
    seconds: float,
) -> LoaderTimes:
    """Load batches of `size` samples, and return times of batches of `batch_size`."""
    began_seconds = time.perf_counter()
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
    return LoaderTimes(
        samples=size * taken,
        batch_size=batch_size,
        parts=longest_first({name: scale * each for name, each in watch.seconds().items()}),
        whole_seconds=scale * sum(whole.seconds().values()),
    )


def longest_first(parts: dict[str, float]) -> dict[str, float]:
    return dict(sorted(parts.items(), key=lambda part: -part[1]))
