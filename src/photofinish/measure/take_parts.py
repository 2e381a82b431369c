"""Parts of a training, timed with its own input: whole epochs, or consecutive steps."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import islice

from photofinish.results.timed_parts import TimedPart
from photofinish.training.batches import Batch, seed_epoch
from photofinish.training.step import take_steps
from photofinish.training.trainer import Trainer

_ENOUGH_EPOCHS = 5
"""Fewest whole epochs that are worth more than parts of epochs, by hand: an interval needs some."""
_PARTS = 30
_VALIDATION_SHARE = 0.2
"""Share of the time that is reserved for validation."""


class Deadline:
    """Deadline by the clock of rank 0, so that all ranks stop after the same step."""

    def __init__(self, trainer: Trainer, seconds: float) -> None:
        self._team = trainer.team
        self._ends_seconds = time.perf_counter() + seconds

    def is_over(self) -> bool:
        return bool(self._team.broadcast_object(time.perf_counter() >= self._ends_seconds))


def second_step_seconds(trainer: Trainer) -> float:
    """Return the time of a step and its batch, launched as in the training.

    The first steps start the loader, so the second launch counts if an epoch has several.
    """
    batches, ended_seconds = _begin(trainer, 0)
    step_seconds = 0.0
    for losses in islice(take_steps(trainer.steps, trainer.state, batches), 2):
        began_seconds, ended_seconds = ended_seconds, trainer.clock.now_seconds()
        step_seconds = (ended_seconds - began_seconds) / losses.numel()
    seconds: float = trainer.team.broadcast_object(step_seconds)
    return seconds


def take_parts(
    trainer: Trainer, step_seconds: float, most_seconds: float, epochs: int
) -> tuple[tuple[TimedPart, ...], float]:
    """Train for at most `most_seconds` or `epochs`. Return the parts and the validation's time.

    Two parts are taken, however long a step takes, or one if there is only one step.
    """
    epoch_seconds = step_seconds * trainer.steps_per_epoch
    if epochs >= _ENOUGH_EPOCHS and _ENOUGH_EPOCHS * epoch_seconds <= most_seconds:
        return _whole_epochs(trainer, Deadline(trainer, most_seconds), epochs)
    deadline = Deadline(trainer, (1 - _VALIDATION_SHARE) * most_seconds)
    # An epoch's start is a part of its own, so steps are left for another part.
    most_steps = max(1, trainer.steps_per_epoch - trainer.steps.at_once)
    steps = min(most_steps, max(1, int(most_seconds / _PARTS / step_seconds)))
    parts = tuple(_parts(trainer, deadline, steps, epochs))
    return parts, _validation_seconds(trainer, Deadline(trainer, _VALIDATION_SHARE * most_seconds))


def _whole_epochs(
    trainer: Trainer, deadline: Deadline, epochs: int
) -> tuple[tuple[TimedPart, ...], float]:
    """Train and validate as the trainer does, but read no losses back and check none."""
    clock, parts, validation_seconds = trainer.clock, list[TimedPart](), 0.0
    for epoch in range(epochs):
        batches, began_seconds = _begin(trainer, epoch)
        for _losses in take_steps(trainer.steps, trainer.state, batches):
            pass
        trained_seconds = clock.now_seconds()
        _validate(trainer, trainer.validation.eval_batches() if trainer.validation else ())
        validation_seconds += clock.now_seconds() - trained_seconds
        steps = trainer.training.image_count / trainer.training.batch_size
        seconds = trained_seconds - began_seconds
        parts.append(TimedPart(seconds=seconds, steps=steps, epoch=epoch, holds="epoch"))
        if deadline.is_over() and len(parts) > 1:
            break
    return tuple(parts), validation_seconds / len(parts)


def _begin(trainer: Trainer, epoch: int) -> tuple[Iterator[Batch], float]:
    """Return the batches of an epoch, and the time when it begins."""
    seed_epoch(trainer.experiment.seed, epoch, trainer.team.rank)
    trainer.state.network.train()
    batches = trainer.train_batches(epoch)
    return batches, trainer.clock.now_seconds()


def _parts(
    trainer: Trainer, deadline: Deadline, part_steps: int, epochs: int
) -> Iterator[TimedPart]:
    """Yield parts of one epoch after another, until the deadline."""
    clock, batch_size, count = trainer.clock, trainer.training.batch_size, 0
    for epoch in range(epochs):
        batches, began_seconds = _begin(trainer, epoch)
        is_start, steps, left = True, 0, trainer.training.image_count
        steps_left = trainer.steps_per_epoch
        for losses in take_steps(trainer.steps, trainer.state, batches):
            steps, steps_left = steps + losses.numel(), steps_left - losses.numel()
            if steps < part_steps and not is_start and steps_left > 0:
                continue
            seconds = clock.now_seconds() - began_seconds
            samples = min(left, steps * batch_size)
            left -= samples
            holds = "start" if is_start else "steps"
            yield TimedPart.model_validate(
                {"seconds": seconds, "steps": samples / batch_size, "epoch": epoch, "holds": holds}
            )
            count += 1
            if deadline.is_over() and count > 1:
                return
            is_start, steps, began_seconds = False, 0, clock.now_seconds()


def _validate(trainer: Trainer, batches: Iterable[Batch]) -> None:
    """Evaluate the batches as after an epoch, with the metric that early stopping follows."""
    sums = trainer.validator.evaluate(trainer.state, batches)
    trainer.validator.monitored(sums.judged)


def _validation_seconds(trainer: Trainer, deadline: Deadline) -> float:
    """Return how long validation takes, from the batches that there is time for."""
    validation, clock = trainer.validation, trainer.clock
    if validation is None:
        return 0.0
    batches, seen = iter(validation.eval_batches()), 0
    began_seconds = clock.now_seconds()
    _validate(trainer, islice(batches, 1))  # includes the loader's start
    started_seconds = clock.now_seconds()

    def in_time() -> Iterator[Batch]:
        nonlocal seen
        for batch in batches:
            seen += 1
            yield batch
            if deadline.is_over():
                return

    others = -(-validation.image_count // validation.batch_size) - 1
    first_seconds = started_seconds - began_seconds
    if not others:
        return first_seconds
    _validate(trainer, in_time())
    return first_seconds + others * (clock.now_seconds() - started_seconds) / seen
