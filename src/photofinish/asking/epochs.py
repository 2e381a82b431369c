"""Sample of a training: whole epochs if there is time for several, else parts of one or two.

The trained state is not kept, so a part may train the training's own state.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

from photofinish.asking.sample import first_epoch_excess
from photofinish.results import EpochTiming
from photofinish.training.batches import Batch, seed_epoch
from photofinish.training.step import take_steps
from photofinish.training.trainer import Trainer

LEAST_EPOCHS = 5
"""Fewest whole epochs of a sample, which an interval needs."""
_PARTS = 30
_VALIDATION_SHARE = 0.2
"""Share of the time that is reserved for validation."""
_PRECISE = 0.02
"""Relative error of an epoch that is small enough. Two runs differ by more."""
_ENOUGH, _LEAST_SHARE = 10, 0.1
"""Fewest values and least share of the time of a precise sample."""
_LATER_PARTS = 3
"""Minimum number of parts in later epochs, to see whether the first epoch is slower."""


@dataclass(frozen=True)
class EpochSample:
    """Durations of epochs, from a sample."""

    epochs: tuple[EpochTiming, ...]
    """Trained epochs, or one epoch that is extrapolated from the parts."""
    steps: int
    """Number of steps that were timed."""
    parts: tuple[EpochTiming, ...] = ()
    """Epoch for each part of the sample, as long as if all its steps were like the part's."""
    once_seconds: float = 0.0
    """Time that only the first epoch takes, for example to fill a cache."""


def estimated_epoch_seconds(trainer: Trainer) -> float:
    """Estimate the time of an epoch's steps from one step and its batch."""
    with trainer.scratch_copy() as state:
        batches = iter(trainer.training.train_batches(0))
        first = next(batches)
        trainer.step(state, 0, first)  # this also starts the loader
        began_seconds = trainer.clock.now_seconds()
        trainer.step(state, 1, next(batches, first))
        step_seconds = trainer.clock.now_seconds() - began_seconds
    seconds: float = trainer.team.broadcast_object(step_seconds * trainer.steps_per_epoch)
    return seconds


def sample_epochs(
    trainer: Trainer,
    epoch_seconds: float,
    most_seconds: float,
    epoch_ended: Callable[[int], None] | None = None,
) -> EpochSample:
    """Train for at most `most_seconds`, or until an epoch's time is known.

    `epoch_ended` is called after each whole epoch, as in a training. Afterwards the trainer's
    progress is as if it had trained the sample's epochs.
    """
    deadline = _Deadline(trainer, most_seconds)
    if LEAST_EPOCHS * epoch_seconds <= most_seconds:
        sample = _whole_epochs(trainer, deadline, epoch_ended)
    else:
        part_seconds = most_seconds / _PARTS
        steps = max(1, int(part_seconds * trainer.steps_per_epoch / epoch_seconds))
        parts = list(_parts(trainer, deadline, steps))
        # A smaller last step is a fraction.
        epoch_steps = trainer.training.image_count / trainer.training.batch_size
        sample = sample_of(parts, epoch_steps, _validation_seconds(trainer, deadline))
    progress = trainer.progress
    progress.timings[:] = sample.epochs
    progress.epochs_done = progress.last_epoch = len(sample.epochs)
    return sample


class _Deadline:
    """Decides when a sample ends, by the clock of rank 0."""

    def __init__(self, trainer: Trainer, most_seconds: float) -> None:
        self._team, self._most_seconds = trainer.team, most_seconds
        self._began_seconds = time.perf_counter()
        self._next_check = _LEAST_SHARE

    def is_over(self, values: Sequence[float], share: float = 1.0) -> bool:
        """Return True after this share of the time, or if the mean of the values is precise."""
        passed_share = (time.perf_counter() - self._began_seconds) / self._most_seconds
        is_known = False
        if passed_share > self._next_check:  # not often, as there may be thousands of values
            self._next_check = passed_share + _LEAST_SHARE
            is_known = len(values) >= _ENOUGH and _is_precise(values)
        return bool(self._team.broadcast_object(passed_share > share or is_known))


def _is_precise(values: Sequence[float]) -> bool:
    error = 2 * statistics.stdev(values) / math.sqrt(len(values))
    return error < _PRECISE * statistics.fmean(values)


def _whole_epochs(
    trainer: Trainer, deadline: _Deadline, epoch_ended: Callable[[int], None] | None
) -> EpochSample:
    timings, values = trainer.progress.timings, list[float]()
    for metrics, timing in trainer.epochs():
        if epoch_ended:
            epoch_ended(metrics.epoch)
        if metrics.epoch > 1:
            values.append(timing.training_seconds)
        if deadline.is_over(values):
            break
    steps = len(timings) * trainer.steps_per_epoch
    first, *later = timings
    if len(later) >= LEAST_EPOCHS - 1:
        usual_seconds = statistics.fmean(epoch.training_seconds for epoch in later)
        if excess_seconds := first_epoch_excess(first.training_seconds, usual_seconds):
            usual = replace(first, training_seconds=usual_seconds), *later
            return EpochSample(usual, steps, once_seconds=excess_seconds)
    return EpochSample(tuple(timings), steps)


class SampledSteps(NamedTuple):
    """Consecutive steps."""

    epoch: int
    is_first: bool
    """True if the part begins an epoch, where a loader starts."""
    steps: int
    seconds: float


def _parts(trainer: Trainer, deadline: _Deadline, part_steps: int) -> Iterator[SampledSteps]:
    """Yield parts of the first epoch, and of later epochs if there is time."""
    share, means, is_over = 1 - _VALIDATION_SHARE, list[float](), False
    for epoch in range(trainer.experiment.epochs):
        seed_epoch(trainer.experiment.seed, epoch, trainer.team.rank)
        trainer.state.network.train()
        batches = trainer.train_batches(epoch)
        is_first, steps, began_seconds = True, 0, trainer.clock.now_seconds()
        for losses in take_steps(trainer.steps, trainer.state, batches):
            steps += losses.numel()
            if steps < part_steps and not is_first:
                continue
            now_seconds = trainer.clock.now_seconds()
            yield SampledSteps(epoch, is_first, steps, now_seconds - began_seconds)
            if not is_first:
                means.append((now_seconds - began_seconds) / steps)
            is_first, steps, began_seconds = False, 0, now_seconds
            is_over = deadline.is_over(means, share)
            if is_over and means:
                return
        if is_over:
            return


def sample_of(
    parts: Sequence[SampledSteps], epoch_steps: float, validation_seconds: float
) -> EpochSample:
    """Return an epoch with the time of its start, and of its steps at the parts' mean speed.

    If later epochs are faster, what the first epoch takes longer counts once.
    """
    steady = [part for part in parts if not part.is_first] or parts
    once_seconds = 0.0
    later = [part for part in steady if part.epoch > 0]
    if len(later) >= _LATER_PARTS:
        first = [part for part in steady if part.epoch == 0]
        if excess_seconds := first_epoch_excess(_mean(first), _mean(later)):
            steady, once_seconds = later, epoch_steps * excess_seconds
    step_seconds = _mean(steady)
    starts = [part.seconds - part.steps * step_seconds for part in parts if part.is_first]
    start_seconds = max(0.0, starts[-1])
    ended_at = time.time()

    def epoch(mean_seconds: float) -> EpochTiming:
        seconds = start_seconds + epoch_steps * mean_seconds
        return EpochTiming(seconds, validation_seconds, ended_at)

    # An interval needs some values. Repeating a few parts does not make it narrower.
    steady = [*steady] * math.ceil(LEAST_EPOCHS / len(steady))
    return EpochSample(
        (epoch(step_seconds),),
        sum(part.steps for part in parts),
        tuple(epoch(part.seconds / part.steps) for part in steady),
        once_seconds,
    )


def _mean(parts: Sequence[SampledSteps]) -> float:
    """Return the mean time of a step."""
    return sum(part.seconds for part in parts) / sum(part.steps for part in parts)


def _validation_seconds(trainer: Trainer, deadline: _Deadline) -> float:
    """Return how long validation takes, from the batches that there is time for."""
    validation, clock = trainer.validation, trainer.clock
    if validation is None:
        return 0.0
    batches, seen = iter(validation.eval_batches()), 0
    began_seconds = clock.now_seconds()
    trainer.validator.evaluate(trainer.state, islice(batches, 1))  # includes the loader's start
    started_seconds = clock.now_seconds()

    def in_time() -> Iterator[Batch]:
        nonlocal seen
        for batch in batches:
            seen += 1
            yield batch
            if deadline.is_over(()):
                return

    others = -(-validation.image_count // validation.batch_size) - 1
    first_seconds = started_seconds - began_seconds
    if not others:
        return first_seconds
    trainer.validator.evaluate(trainer.state, in_time())
    return first_seconds + others * (clock.now_seconds() - started_seconds) / seen
