"""Parts of a training, timed with its own input: whole epochs, or consecutive steps."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from statistics import fmean

from photofinish.results import TimedPart
from photofinish.training.batches import Batch
from photofinish.training.trainer import Trainer

_ENOUGH_EPOCHS = 5
"""Fewest whole epochs that are worth more than parts of epochs, by hand: an interval needs some."""
_PARTS = 30
"""Parts that the time is divided into, by hand."""
_VALIDATION_SHARE = 0.2
"""Share of the time that is reserved for validation, by hand."""


def is_over(trainer: Trainer, ends_seconds: float) -> bool:
    """Return True after a time by the clock of rank 0, for equal steps of all."""
    return bool(trainer.team.broadcast_object(time.perf_counter() >= ends_seconds))


def second_step_seconds(trainer: Trainer) -> float:
    """Return the time of a step and its batch, launched as in the training.

    The first steps start the loader, so the second launch counts if an epoch has several.
    """
    *_, last = islice(trainer.parts(0, 1), 2)
    steps = sum(losses.numel() for losses in last.losses)
    seconds: float = trainer.team.broadcast_object(last.timed.seconds / steps)
    return seconds


def take_parts(
    trainer: Trainer, step_seconds: float, most_seconds: float, epochs: int
) -> tuple[tuple[TimedPart, ...], float]:
    """Train for at most `most_seconds` or `epochs`. Return the parts and the validation's time.

    Two parts are taken, however long a step takes, or one if there is only one step.
    """
    epoch_seconds = step_seconds * trainer.steps_per_epoch
    is_whole = epochs >= _ENOUGH_EPOCHS and _ENOUGH_EPOCHS * epoch_seconds <= most_seconds
    # An epoch's start is a separate part, so steps are left for another part.
    most_steps = max(1, trainer.steps_per_epoch - trainer.steps.at_once)
    steps = min(most_steps, max(1, int(most_seconds / _PARTS / step_seconds)))
    validation_share = 0.0 if is_whole else _VALIDATION_SHARE
    ends_seconds = time.perf_counter() + (1 - validation_share) * most_seconds
    parts, validation_seconds = list[TimedPart](), list[float]()
    for part in chain.from_iterable(
        trainer.parts(epoch, None if is_whole else steps, notes_waits=True)
        for epoch in range(epochs)
    ):
        parts.append(part.timed)
        if is_whole:
            trainer.validator.monitored(trainer.validate().judged)
            validation_seconds.append(trainer.clock.now_seconds() - part.ended_seconds)
        if is_over(trainer, ends_seconds) and len(parts) > 1:
            break
    if is_whole:
        return tuple(parts), fmean(validation_seconds)
    return tuple(parts), _validation_seconds(trainer, validation_share * most_seconds)


def _validate(trainer: Trainer, batches: Iterable[Batch]) -> None:
    """Evaluate the batches as after an epoch, with the metric that early stopping follows."""
    sums = trainer.validator.evaluate(trainer.state, batches)
    trainer.validator.monitored(sums.judged)


def _validation_seconds(trainer: Trainer, most_seconds: float) -> float:
    validation, clock = trainer.validation, trainer.clock
    if validation is None:
        return 0.0
    began_seconds = clock.now_seconds()
    if trainer.validator.is_captured:
        trainer.validate()
        return clock.now_seconds() - began_seconds
    batches, seen = iter(validation.eval_batches()), 0
    _validate(trainer, islice(batches, 1))  # includes the loader's start
    started_seconds = clock.now_seconds()

    def in_time() -> Iterator[Batch]:
        nonlocal seen
        for batch in batches:
            seen += 1
            yield batch
            if is_over(trainer, began_seconds + most_seconds):
                return

    first_seconds, others = started_seconds - began_seconds, validation.steps - 1
    if not others:
        return first_seconds
    _validate(trainer, in_time())
    return first_seconds + others * (clock.now_seconds() - started_seconds) / seen
