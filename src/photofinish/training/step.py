"""A training step: one of three callables, chosen once for a training.

A step trains on one batch. `EagerSteps` takes steps one by one. graphs.py captures steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Literal, Protocol

import torch
from torch.nn.utils import clip_grad_norm_

from photofinish.nested import as_nested, leaves, samples_in
from photofinish.training.batch_loss import BatchLoss, LossOfStep, to_input
from photofinish.training.batches import Batch

if TYPE_CHECKING:
    from photofinish.config.experiment import Experiment
    from photofinish.training.state import TrainState


class Step(Protocol):
    """Callable that trains on one batch."""

    def __call__(
        self, state: TrainState, number: int, batch: Batch, rate: torch.Tensor | None = None, /
    ) -> torch.Tensor:
        """Train on the epoch's batch `number`, from 0. Return the loss, on the device.

        The learning rate is the schedule's, unless `rate` holds another rate on the device.
        """


def choose_step(experiment: Experiment, loss: BatchLoss, optimizers: int) -> Step:
    if optimizers > 1:
        assert isinstance(loss, LossOfStep)
        return StepOfSeveralOptimizers(loss)
    if experiment.accumulate > 1:
        return AccumulatedStep(loss, experiment.clip_grad_norm, experiment.accumulate)
    return PlainStep(loss, experiment.clip_grad_norm)


class PlainStep:
    """Step with one forward pass, one backward pass and one optimizer."""

    def __init__(self, loss: BatchLoss, clip_norm: float | None) -> None:
        self._loss, self._clip_norm = loss, clip_norm

    def __call__(
        self, state: TrainState, number: int, batch: Batch, rate: torch.Tensor | None = None
    ) -> torch.Tensor:
        loss = self._loss.mean(state, number, batch)
        state.optimizer.zero_grad()
        state.scaler.scale(loss).backward(state.first_gradient)  # type: ignore[no-untyped-call]
        _update(state, self._clip_norm, rate)
        return loss.detach()


class AccumulatedStep:
    """Step on a batch in parts, whose gradients are added up."""

    def __init__(self, loss: BatchLoss, clip_norm: float | None, parts: int) -> None:
        self._loss, self._clip_norm, self._parts = loss, clip_norm, parts

    def __call__(
        self, state: TrainState, number: int, batch: Batch, rate: torch.Tensor | None = None
    ) -> torch.Tensor:
        loss = self._add_gradients(state, number, batch)
        _update(state, self._clip_norm, rate)
        return loss

    def _add_gradients(self, state: TrainState, number: int, batch: Batch) -> torch.Tensor:
        """Add up the gradients of the batch's parts, and return the loss of the whole batch.

        Each part's loss is divided by the number of samples. If the loss has weights, their sum is
        known only after the last part, so gradients are scaled at the end.
        """
        team, count = self._loss.team, self._loss.training.batch_samples(number)
        parts = split_batch(batch, max(1, -(-samples_in(batch[1]) // self._parts)))
        loss, weights = torch.zeros((), device=team.devices[0]), None
        state.optimizer.zero_grad()
        for part_number, part in enumerate(parts):
            is_last = part_number == len(parts) - 1
            with nullcontext() if is_last else team.no_sync(state.network):
                total, weight = self._loss.sum_and_weight(state, part)
                scaled = state.scaler.scale(total * (team.size / count))
                scaled.backward()  # type: ignore[no-untyped-call]
            loss += total.detach()
            if isinstance(weight, torch.Tensor):
                weights = weight if weights is None else weights + weight
        if weights is None:
            return loss * (team.size / count)
        weights = team.all_reduce(weights)
        for parameter in state.network.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(count / weights)
        return loss * (team.size / weights)


class StepOfSeveralOptimizers:
    """Custom step that steps several optimizers itself."""

    def __init__(self, loss: LossOfStep) -> None:
        self._loss = loss

    def __call__(
        self, state: TrainState, _number: int, batch: Batch, _rate: torch.Tensor | None = None
    ) -> torch.Tensor:
        with self._loss.autocast():
            inputs = to_input(state, batch)
            loss = self._loss.custom_step(state.network, inputs, state.optimizers)
        _update_average(state)
        return loss.detach()


def _update(state: TrainState, clip_norm: float | None, rate: torch.Tensor | None) -> None:
    """Update weights, scaler and average from the gradients."""
    if clip_norm:
        state.scaler.unscale_(state.optimizer)
        clip_grad_norm_(state.network.parameters(), clip_norm)
    with state.schedule.applied(rate):
        state.scaler.step(state.optimizer)
    state.scaler.update()
    _update_average(state)


def _update_average(state: TrainState) -> None:
    if state.average:
        state.average.update()


class EagerSteps:
    """Steps whose operators are launched one by one."""

    kind: Literal["eager", "graph"] = "eager"
    at_once = 1
    """Maximum number of steps that are launched together."""

    def __init__(self, step: Step, why: str = "") -> None:
        self._step = step
        self.why = why
        """Reason for this kind of steps, for the record."""

    def __call__(self, state: TrainState, number: int, batch: Batch) -> torch.Tensor:
        """Train on the epoch's batch `number`. Return its loss, on the device."""
        loss = self._step(state, number, batch)
        state.schedule.batch_ended()
        return loss

    def repeat(self, state: TrainState, batch: Batch, steps: int) -> Callable[[], object]:
        """Return a function that takes this number of steps on one batch."""
        return lambda: [self._step(state, 0, batch) for _ in range(steps)]

    def note_failure(self, error: BaseException) -> None:
        """Add to `why` that eager steps were measured, because a capture failed in measuring."""
        note = f"; some were measured one by one, as recording them failed ({first_failure(error)})"
        self.why += "" if note in self.why else note

    def release(self) -> None:
        """Free what was captured."""


def take_steps(
    steps: EagerSteps, state: TrainState, batches: Iterable[Batch]
) -> Iterator[torch.Tensor]:
    """Train on an epoch's batches. Yield the loss of each step, or the losses of captured steps."""
    number = 0
    for batch in batches:
        losses = steps(state, number, batch)
        number += losses.numel()
        yield losses


def split_batch(batch: Batch, size: int) -> list[Batch]:
    """Split a batch into parts of `size` samples. The last part may be smaller."""
    parts = [torch.split(tensor, size) for tensor in tensors_of(batch)]
    inputs = len(leaves(batch[0]))
    split = []
    for tensors in zip(*parts, strict=True):
        images, labels = list(tensors[:inputs]), list(tensors[inputs:])
        split.append((as_nested(images, batch[0]), as_nested(labels, batch[1])))
    return split


def tensors_of(batch: Batch) -> list[torch.Tensor]:
    """Return all tensors of a batch, the inputs first."""
    inputs, targets = batch
    return [*leaves(inputs), *leaves(targets)]


def first_failure(error: BaseException) -> str:
    """Return the first line of the original error, which the end of a failed capture hides."""
    while isinstance(error.__context__, RuntimeError):
        error = error.__context__
    return str(error).strip().partition("\n")[0]
