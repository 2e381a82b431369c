"""Loss of a batch in training and validation, from the network's outputs or from a custom step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from photofinish.errors import ConfigError
from photofinish.nested import call_with, leaves, map_nested, samples_in
from photofinish.training.batches import Batch, Batches
from photofinish.training.custom_step import CustomStep
from photofinish.training.losses import Loss
from photofinish.training.output_metrics import rows_that_count
from photofinish.training.state import TrainState
from photofinish.training.torch_device import autocast, to_memory_format
from photofinish.training.world import World

if TYPE_CHECKING:
    from photofinish.config.experiment import Experiment

Weight = torch.Tensor | int
"""Divisor that turns a summed loss into a mean."""


class Scores(NamedTuple):
    """Result of validation on one batch, on the device."""

    loss: torch.Tensor
    """Loss, summed over the samples."""
    weight: Weight
    correct: torch.Tensor | None = None
    """Number of correct predictions, or None if the task counts none."""
    predicted: Weight = 0
    judged: tuple[Any, Any] | None = None
    """Outputs and targets, if a metric needs them."""


class BatchLoss(ABC):
    """Loss of a batch."""

    def __init__(self, team: World, training: Batches, precision: str) -> None:
        self.team = team
        self.training, self._precision = training, precision

    def mean(self, state: TrainState, number: int, batch: Batch) -> torch.Tensor:
        """Return the mean loss of the epoch's batch `number`.

        DDP averages gradients over ranks. With several ranks, the loss is scaled so that the
        average is the gradient of the whole batch's mean, even if shares are uneven.
        """
        with self.autocast():
            if self.team.size == 1:
                return self._mean(state, batch)
            total, weight = self._sum_and_weight(state, batch)
            if isinstance(weight, torch.Tensor):
                return total * (self.team.size / self.team.all_reduce(weight))
            return total * (self.team.size / self.training.batch_samples(number))

    def sum_and_weight(self, state: TrainState, batch: Batch) -> tuple[torch.Tensor, Weight]:
        """Return the batch's summed loss, and the weight to divide it by for the mean."""
        with self.autocast():
            return self._sum_and_weight(state, batch)

    def autocast(self) -> AbstractContextManager[object]:
        return autocast(self.team.devices[0], self._precision)

    @abstractmethod
    def scores(self, network: nn.Module, state: TrainState, batch: Batch) -> Scores:
        """Return the scores on a batch of `network`: the network of `state`, or its average."""

    @abstractmethod
    def _mean(self, state: TrainState, batch: Batch) -> torch.Tensor: ...

    @abstractmethod
    def _sum_and_weight(self, state: TrainState, batch: Batch) -> tuple[torch.Tensor, Weight]: ...


class LossOfOutputs(BatchLoss):
    """Loss function of the network's outputs."""

    def __init__(
        self,
        criterion: Loss,
        team: World,
        training: Batches,
        precision: str,
        *,
        keeps_outputs: bool = False,
    ) -> None:
        super().__init__(team, training, precision)
        self._criterion, self._keeps_outputs = criterion, keeps_outputs

    def scores(self, network: nn.Module, state: TrainState, batch: Batch) -> Scores:
        with self.autocast():
            outputs, targets = _predict(network, state, batch)
        loss, weight = self._criterion.sum_and_weight(
            map_nested(torch.Tensor.float, outputs), targets
        )
        correct = self._criterion.task.num_correct(outputs, targets)
        predicted = self._criterion.task.num_predictions(targets)
        judged = None
        if self._keeps_outputs:
            judged = rows_that_count(self._criterion.task, outputs, targets)
        return Scores(loss, weight, correct, predicted, judged)

    def _mean(self, state: TrainState, batch: Batch) -> torch.Tensor:
        return self._criterion.mean(*_predict(state.network, state, batch))

    def _sum_and_weight(self, state: TrainState, batch: Batch) -> tuple[torch.Tensor, Weight]:
        return self._criterion.sum_and_weight(*_predict(state.network, state, batch))


class LossOfStep(BatchLoss):
    """Mean loss that a custom step returns."""

    def __init__(
        self, custom_step: CustomStep, team: World, training: Batches, precision: str
    ) -> None:
        super().__init__(team, training, precision)
        self.custom_step = custom_step

    def scores(self, network: nn.Module, state: TrainState, batch: Batch) -> Scores:
        with self.autocast():
            loss = self.custom_step(network, to_input(state, batch)).float()
        count = samples_in(batch[1])
        # The mean over no samples may be NaN.
        return Scores(loss * count if count else torch.zeros_like(loss), count)

    def _mean(self, state: TrainState, batch: Batch) -> torch.Tensor:
        return self.custom_step(state.network, to_input(state, batch))

    def _sum_and_weight(self, state: TrainState, batch: Batch) -> tuple[torch.Tensor, Weight]:
        count = samples_in(batch[1])
        return self._mean(state, batch) * count, count


def choose_losses(
    experiment: Experiment,
    criterion: Loss,
    team: World,
    training: Batches,
    *,
    keeps_outputs: bool = False,
) -> tuple[BatchLoss, BatchLoss]:
    """Return the losses of training and validation.

    With `keeps_outputs`, the validation loss keeps the network's outputs and the targets.
    """
    precision = experiment.precision
    in_training: BatchLoss = LossOfOutputs(
        criterion, team, training, precision, keeps_outputs=keeps_outputs
    )
    if experiment.step:
        if (last := training.batch_samples(training.steps - 1)) < team.size:
            raise ConfigError(
                f"batch_size {training.batch_size} leaves {last} samples for the last batch of "
                f"{team.size} processes, and a step needs one in each: set another"
            )
        in_training = LossOfStep(CustomStep(experiment.step), team, training, precision)
    if experiment.validation_step is None:
        return in_training, in_training
    validation_step = CustomStep(experiment.validation_step)
    return in_training, LossOfStep(validation_step, team, training, precision)


def to_input(state: TrainState, batch: Batch) -> Batch:
    """Return a batch in the network's memory format."""
    return to_memory_format(batch[0], state.memory_format), batch[1]


def _predict(network: nn.Module, state: TrainState, batch: Batch) -> tuple[Any, Any]:
    """Return the network's outputs for a batch, and the targets on their device."""
    inputs, targets = batch
    outputs = call_with(network, to_memory_format(inputs, state.memory_format))
    if isinstance(outputs, torch.Tensor) and isinstance(targets, torch.Tensor):  # fast
        return outputs, targets.to(outputs.device, non_blocking=True)
    device = leaves(outputs)[0].device
    return outputs, map_nested(lambda part: part.to(device, non_blocking=True), targets)
