"""A training step on one batch, launched operator by operator."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Literal

import torch
from torch.nn.utils import clip_grad_norm_

from photofinish.nested import samples_in
from photofinish.training.batches import Batch, Batches, split_batch
from photofinish.training.losses import CustomStep, Loss, Weight, predict, to_input
from photofinish.training.torch_device import autocast

if TYPE_CHECKING:
    from photofinish.config import experiment as params
    from photofinish.training.state import TrainState
    from photofinish.training.world import World


class Step:
    """Training step on one batch, launched operator by operator. graphs.py captures steps."""

    kind: Literal["eager", "graph"] = "eager"
    at_once = 1
    """Maximum number of steps that are launched together."""

    def __init__(
        self, experiment: params.Experiment, criterion: Loss, team: World, training: Batches
    ) -> None:
        self.custom = CustomStep(experiment.step) if experiment.step else None
        self._criterion, self._team, self._training = criterion, team, training
        self._parts = experiment.accumulate
        self._clip_norm = experiment.clip_grad_norm
        collates = experiment.input.name == "loader" and experiment.input.collate is not None
        self._counts_samples = collates or experiment.batch_transform is not None
        self.autocast = autocast(team.devices[0], experiment.precision)
        """Context of the forward pass and the loss, entered in each step, but not inside itself."""
        self.why = ""
        """Reason for launching steps one by one, for the record."""

    def __call__(
        self,
        state: TrainState,
        number: int,
        batch: Batch,
        rate: torch.Tensor | None = None,
        *,
        moves_schedule: bool = True,
    ) -> torch.Tensor:
        """Train on the epoch's batch `number`, from 0. Return its mean loss, on the device.

        The learning rate is the schedule's, unless `rate` holds another rate on the device.
        """
        if len(state.optimizers) > 1:  # the custom step steps them, and their schedule is constant
            assert self.custom
            with self.autocast:
                loss = self.custom(state.network, to_input(state, batch), state.optimizers)
        else:
            loss = self._with_one_optimizer(state, number, batch, rate)
        if state.average:
            state.average.update()
        if moves_schedule:
            state.schedule.batch_ended()
        return loss.detach()

    def _with_one_optimizer(
        self, state: TrainState, number: int, batch: Batch, rate: torch.Tensor | None
    ) -> torch.Tensor:
        optimizer, scaler = state.optimizer, state.scaler
        if self._parts > 1:
            loss = self._add_gradients(state, number, batch)
        else:
            with self.autocast:
                if self._team.size > 1:
                    # DDP averages gradients over ranks, which gives the gradient of the whole
                    # batch's mean, even if shares are uneven.
                    total, weight = self._sum_and_weight(state, batch)
                    if isinstance(weight, torch.Tensor):
                        whole: Weight = self._team.all_reduce(weight)
                    else:
                        whole = self._samples(number, batch)
                    loss = total * (self._team.size / whole)
                else:
                    loss = self.mean_loss(state, batch)
            optimizer.zero_grad()
            scaler.scale(loss).backward(state.first_gradient)  # type: ignore[no-untyped-call]
        if self._clip_norm:
            scaler.unscale_(optimizer)
            clip_grad_norm_(state.network.parameters(), self._clip_norm)
        with state.schedule.applied(rate):
            scaler.step(optimizer)
        scaler.update()
        return loss

    def mean_loss(self, state: TrainState, batch: Batch) -> torch.Tensor:
        if self.custom:
            return self.custom(state.network, to_input(state, batch))
        # No name holds the outputs, which may be large, during the backward pass.
        return self._criterion.mean(*predict(state.network, state, batch))

    def _samples(self, number: int, batch: Batch) -> Weight:
        """Return the number of samples in a batch, over all ranks, as custom code may change it."""
        if self._team.size == 1:
            return samples_in(batch[1])
        if not self._counts_samples:
            return self._training.batch_samples(number)
        count = torch.tensor(float(samples_in(batch[1])), device=self._team.devices[0])
        return self._team.all_reduce(count)

    def _sum_and_weight(self, state: TrainState, batch: Batch) -> tuple[torch.Tensor, Weight]:
        """Return this rank's summed loss, and the weight to divide it by for the mean."""
        if self.custom:
            count = samples_in(batch[1])
            return self.custom(state.network, to_input(state, batch)) * count, count
        return self._criterion.sum_and_weight(*predict(state.network, state, batch))

    def _add_gradients(self, state: TrainState, number: int, batch: Batch) -> torch.Tensor:
        """Add up the gradients of the batch's parts, and return the loss of the whole batch.

        Each part's loss is divided by the number of samples. If the loss has weights, their sum is
        known only after the last part, so gradients are scaled at the end.
        """
        team, count = self._team, self._samples(number, batch)
        parts = self._split(number, batch)
        loss, weights = torch.zeros((), device=team.output_device), None
        state.optimizer.zero_grad()
        for part_number, part in enumerate(parts):
            is_last = part_number == len(parts) - 1
            with nullcontext() if is_last else team.no_sync(state.network):
                with self.autocast:
                    total, weight = self._sum_and_weight(state, part)
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

    def _split(self, number: int, batch: Batch) -> list[Batch]:
        """Split a batch into parts, as many on each rank, since SyncBatchNorm waits in each."""
        count, ranks = samples_in(batch[1]), self._team.size
        if ranks == 1:
            return split_batch(batch, max(1, -(-count // self._parts)))
        # The planned size is the same on each rank, and custom code may change the batch's.
        parts = max(1, min(self._parts, self._training.batch_samples(number) // ranks))
        return split_batch(batch, [(count + part) // parts for part in range(parts)])

    def repeat(self, state: TrainState, batch: Batch, steps: int) -> Callable[[], object]:
        return lambda: [self(state, 0, batch, moves_schedule=False) for _ in range(steps)]

    def with_training(self, training: Batches) -> Step:
        """Return this step for other batches, of which it knows the sizes."""
        step = copy.copy(self)
        step._training = training
        return step

    def because(self, why: str) -> Step:
        step = copy.copy(self)
        step.why = why
        return step
