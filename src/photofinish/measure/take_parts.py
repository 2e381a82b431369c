"""Parts of a training, timed with its own input: whole epochs, or consecutive steps."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Literal

import torch

from photofinish.results.timed_parts import TimedPart
from photofinish.training.batches import Batch, seed_epoch
from photofinish.training.graphs import Steps
from photofinish.training.state import TrainState
from photofinish.training.torch_device import CPU
from photofinish.training.trainer import Trainer

_ENOUGH_EPOCHS = 5
"""Fewest whole epochs that are worth more than parts of epochs, by hand: an interval needs some."""
_PARTS = 30
"""Parts that the time is divided into, by hand."""
_VALIDATION_SHARE = 0.2
"""Share of the time that is reserved for validation, by hand."""


class Deadline:
    """Deadline by the clock of rank 0, so that all ranks stop after the same step."""

    def __init__(self, trainer: Trainer, seconds: float) -> None:
        self._team = trainer.team
        self._ends_seconds = time.perf_counter() + seconds

    def is_over(self) -> bool:
        return bool(self._team.broadcast_object(time.perf_counter() >= self._ends_seconds))


def take_steps(steps: Steps, state: TrainState, batches: Iterable[Batch]) -> Iterator[torch.Tensor]:
    """Train on an epoch's batches. Yield the loss of each step, or the losses of captured steps."""
    number = 0
    for batch in batches:
        losses = steps(state, number, batch)
        number += losses.numel()
        del batch  # as in a training
        yield losses


def _noting_waits(batches: Iterable[Batch], waits: list[tuple[float, float]]) -> Iterator[Batch]:
    """Yield the batches. Note the time to wait for each, and this thread's CPU time in it."""
    began_seconds, began_cpu_seconds = time.perf_counter(), time.thread_time()
    for batch in batches:
        cpu_seconds = time.thread_time() - began_cpu_seconds
        waits.append((time.perf_counter() - began_seconds, cpu_seconds))
        yield batch
        del batch  # as in a training
        began_seconds, began_cpu_seconds = time.perf_counter(), time.thread_time()


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
    # An epoch's start is a separate part, so steps are left for another part.
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
        ((part, _losses),) = parts_of_epoch(trainer, epoch, None)
        parts.append(part)
        trained_seconds = clock.now_seconds()
        trainer.validator.monitored(trainer.validate().judged)
        validation_seconds += clock.now_seconds() - trained_seconds
        if deadline.is_over() and len(parts) > 1:
            break
    return tuple(parts), validation_seconds / len(parts)


def _begin(
    trainer: Trainer, epoch: int, waits: list[tuple[float, float]] | None = None
) -> tuple[Iterator[Batch], float]:
    """Return the batches of an epoch, whose waits are noted, and the time when it begins."""
    seed_epoch(trainer.experiment.seed, epoch, trainer.team.rank)
    trainer.state.network.train()
    noted = iter if waits is None else partial(_noting_waits, waits=waits)
    batches = trainer.train_batches(epoch, noted)
    return batches, trainer.clock.now_seconds()


def _parts(
    trainer: Trainer, deadline: Deadline, part_steps: int, epochs: int
) -> Iterator[TimedPart]:
    """Yield parts of one epoch after another, until the deadline."""
    count = 0
    for epoch in range(epochs):
        for part, _losses in parts_of_epoch(trainer, epoch, part_steps):
            yield part
            count += 1
            if deadline.is_over() and count > 1:
                return


def parts_of_epoch(
    trainer: Trainer, epoch: int, part_steps: int | None
) -> Iterator[tuple[TimedPart, list[torch.Tensor]]]:
    """Train an epoch. Yield each part, with its losses.

    The first part is the epoch's start. The others have `part_steps` steps, or more if steps are
    launched together. Without `part_steps`, the epoch is one part.
    """
    clock, training, left = trainer.clock, trainer.training, trainer.training.image_count
    holds: Literal["start", "steps", "epoch"] = "start" if part_steps else "epoch"
    losses, steps, steps_left = list[torch.Tensor](), 0, trainer.steps_per_epoch
    waits = list[tuple[float, float]]()
    # An accelerator may compute while the host waits.
    batches, began_seconds = _begin(trainer, epoch, waits if trainer.device == CPU else None)
    for each in take_steps(trainer.steps, trainer.state, batches):
        losses.append(each)
        steps, steps_left = steps + each.numel(), steps_left - each.numel()
        if holds != "start" and steps_left > 0 and steps < (part_steps or math.inf):
            continue
        seconds = clock.now_seconds() - began_seconds
        samples = min(left, steps * training.batch_size)
        left -= samples
        steps_done = samples / training.batch_size
        part = TimedPart(seconds=seconds, steps=steps_done, epoch=epoch, holds=holds)
        if waits:
            waited_seconds, cpu_seconds = map(sum, zip(*waits, strict=True))
            part = part.model_copy(
                update={"waiting_seconds": waited_seconds, "waiting_cpu_seconds": cpu_seconds}
            )
            waits.clear()
        yield part, losses
        holds, losses, steps, began_seconds = "steps", [], 0, clock.now_seconds()


def _validate(trainer: Trainer, batches: Iterable[Batch]) -> None:
    """Evaluate the batches as after an epoch, with the metric that early stopping follows."""
    sums = trainer.validator.evaluate(trainer.state, batches)
    trainer.validator.monitored(sums.judged)


def _validation_seconds(trainer: Trainer, deadline: Deadline) -> float:
    """Return how long validation takes, from the batches that there is time for."""
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
            if deadline.is_over():
                return

    first_seconds, others = started_seconds - began_seconds, validation.steps - 1
    if not others:
        return first_seconds
    _validate(trainer, in_time())
    return first_seconds + others * (clock.now_seconds() - started_seconds) / seen
