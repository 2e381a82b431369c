"""The only training loop. The device is an argument. The loop knows no files, no DVC and no MLflow.

The timed pass over an epoch is never disturbed: nothing is logged, read back from the device or
synchronized inside it. The clock waits for the device at both ends.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from photofinish.errors import UserError
from photofinish.nested import call_with
from photofinish.results import EpochMetrics, EpochTiming
from photofinish.training.batches import Batch, Batches, seed_epoch
from photofinish.training.optimization import Loss, Schedule, build_optimizer
from photofinish.training.steps import Steps
from photofinish.training.torch_device import (
    autocast,
    compile_network,
    gradient_scaler,
    memory_format,
    to_memory_format,
)
from photofinish.training.world import World

if TYPE_CHECKING:
    from photofinish.config.experiment import Experiment
    from photofinish.data import Task


class NonFiniteLossError(UserError):
    """The loss is no longer a number, so training on would waste time."""


@dataclass
class Progress:
    """The epochs that are done, as checkpoints hold them."""

    epochs_done: int = 0
    metrics: list[EpochMetrics] = field(default_factory=list)
    timings: list[EpochTiming] = field(default_factory=list)


def progress_in(state: dict[str, Any]) -> Progress:
    """Read the progress out of a trainer's `state_dict`."""
    progress = state["progress"]
    return Progress(
        progress["epochs_done"],
        [EpochMetrics(**metrics) for metrics in progress["metrics"]],
        [EpochTiming(**timing) for timing in progress["timings"]],
    )


class TrainState(NamedTuple):
    """All that a training step changes."""

    network: nn.Module
    """The network as a step calls it: wrapped for several devices."""
    optimizer: torch.optim.Optimizer
    schedule: Schedule
    scaler: torch.amp.GradScaler
    memory_format: torch.memory_format
    """Memory format of weights and images."""
    first_gradient: torch.Tensor | None = None
    """A 1 on the device, with which a captured backward pass starts."""


class Trainer:
    """Trains one network on the devices of one world."""

    def __init__(
        self,
        experiment: Experiment,
        network: nn.Module,
        training: Batches,
        validation: Batches,
        device: torch.device,
        team: World | None = None,
        task: Task = "classes",
    ) -> None:
        self.experiment, self.device, self.task = experiment, device, task
        self.training, self.validation = training, validation
        self.team = team or World(device)
        self.clock = self.team.clock()
        self.criterion = Loss(experiment.loss, task, self.team.output_device)
        self.steps_per_epoch = -(-training.image_count // training.batch_size)
        layout = memory_format(network, device, experiment.precision)
        network.to(device, memory_format=layout)  # type: ignore[call-overload]
        self.network = self.team.adapt(network)
        if experiment.model.compile:
            compile_network(self.network, deterministic=experiment.deterministic)
        self.state = self.fresh_state(self.team.parallel(self.network), layout)
        self.steps = Steps()
        self.progress = Progress()
        self.steps_done = 0
        """Number of steps in the whole run. A progress bar reads it from another thread."""

    def fresh_state(self, network: nn.Module, layout: torch.memory_format) -> TrainState:
        """Create a fresh optimizer, schedule and gradient scaler for `network`."""
        experiment = self.experiment
        scaler = gradient_scaler(self.device, experiment.precision)
        optimizer = build_optimizer(
            experiment.optimizer, network.parameters(), loss_is_scaled=scaler.is_enabled()
        )
        schedule = Schedule(
            experiment.schedule,
            optimizer,
            epochs=experiment.epochs,
            steps_per_epoch=self.steps_per_epoch,
        )
        return TrainState(network, optimizer, schedule, scaler, layout)

    def state_dict(self) -> dict[str, Any]:
        """Return all that the rest of the run depends on.

        Batch order and dropout follow from seed and epoch.
        """
        return {
            "network": self.network.state_dict(),
            "optimizer": self.state.optimizer.state_dict(),
            "schedule": self.state.schedule.state_dict(),
            "scaler": self.state.scaler.state_dict(),
            "progress": asdict(self.progress),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.steps.release()  # captured steps read tensors that are replaced here
        self.network.load_state_dict(state["network"])
        self.state.optimizer.load_state_dict(state["optimizer"])
        self.state.schedule.load_state_dict(state["schedule"])
        self.state.scaler.load_state_dict(state["scaler"])
        self.progress = progress_in(state)
        self.steps_done = self.progress.epochs_done * self.steps_per_epoch

    def epochs(self) -> Iterator[tuple[EpochMetrics, EpochTiming]]:
        """Train the remaining epochs. Nothing is timed while a caller handles what one gave."""
        for epoch in range(self.progress.epochs_done, self.experiment.epochs):
            metrics, timing = self._epoch(epoch)
            self.progress.metrics.append(metrics)
            self.progress.timings.append(timing)
            self.progress.epochs_done = epoch + 1
            yield metrics, timing

    def _epoch(self, epoch: int) -> tuple[EpochMetrics, EpochTiming]:
        """Train and validate one epoch. Read nothing back from the device until both are timed."""
        seed_epoch(self.experiment.seed, epoch, self.team.rank)
        learning_rate = self.state.schedule.learning_rate
        self.state.network.train()
        losses = []

        started_seconds = self.clock.now_seconds()
        for step_losses in self.take_steps(self.steps, self.state, epoch):
            losses.append(step_losses.reshape(-1))
            self.steps_done += step_losses.numel()
        trained_seconds = self.clock.now_seconds()
        validation = self.evaluate(self.state, self.validation.eval_batches())
        validated_seconds = self.clock.now_seconds()

        train_loss, validation_loss, accuracy = self._metrics(
            epoch, torch.cat(losses).cpu().double(), *validation
        )
        self.state.schedule.epoch_ended(validation_loss)
        metrics = EpochMetrics(epoch + 1, learning_rate, train_loss, validation_loss, accuracy)
        timing = EpochTiming(
            trained_seconds - started_seconds, validated_seconds - trained_seconds, time.time()
        )
        return metrics, timing

    def take_steps(self, steps: Steps, state: TrainState, epoch: int) -> Iterator[torch.Tensor]:
        """Train one epoch. Yields each step's loss, or those of several captured steps."""
        steps.capture(self, state)
        number = 0
        for batch in self.training.train_batches(epoch, steps.at_once):
            losses = steps.take(self, state, number, batch)
            number += losses.numel()
            yield losses

    def step(
        self, state: TrainState, number: int, batch: Batch, rate: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Train on the epoch's batch of this number, from 0. Returns the loss, on the device.

        The learning rate is the schedule's, unless `rate` holds another one on the device.
        """
        loss = self.loss(state, number, batch)
        state.optimizer.zero_grad()
        state.scaler.scale(loss).backward(state.first_gradient)  # type: ignore[no-untyped-call]
        with state.schedule.applied(rate):
            state.scaler.step(state.optimizer)
        state.scaler.update()
        return loss.detach()

    def loss(self, state: TrainState, number: int, batch: Batch) -> torch.Tensor:
        """Return the batch's mean loss. With several ranks, it is scaled for DDP."""
        images, labels = batch
        with autocast(self.device, self.experiment.precision):
            outputs = call_with(state.network, to_memory_format(images, state.memory_format))
            labels = labels.to(outputs.device, non_blocking=True)
            if self.team.size == 1:
                return self.criterion.mean(outputs, labels)
            # DDP averages gradients over ranks. Scaled like this, that gives the gradient of the
            # mean over the whole batch, however uneven the shares.
            total, weight = self.criterion.sum_and_weight(outputs, labels)
            if isinstance(weight, torch.Tensor):
                return total * (self.team.size / self.team.all_reduce(weight))
            return total * (self.team.size / self._batch_images(number))

    @torch.inference_mode()
    def evaluate(
        self, state: TrainState, batches: Iterable[Batch]
    ) -> tuple[float, float, tuple[float, float]]:
        """Return this rank's summed loss, summed loss weight, and correct and all predictions.

        Synchronizes once, at the end.
        """
        state.network.eval()
        losses, weights, correct, predicted = [], [], [], []
        for images, labels in batches:
            with autocast(self.device, self.experiment.precision):
                outputs = call_with(state.network, to_memory_format(images, state.memory_format))
            labels = labels.to(outputs.device, non_blocking=True)
            loss, weight = self.criterion.sum_and_weight(outputs.float(), labels)
            losses.append(loss)
            weights.append(weight)
            correct.append(self.criterion.num_correct(outputs, labels))
            predicted.append(self.criterion.num_predictions(labels))
        loss_sum = torch.stack(losses).cpu().double().sum().item()
        right = torch.stack(correct).sum().item(), float(sum(predicted))
        return loss_sum, float(sum(weights)), right

    def _metrics(
        self,
        epoch: int,
        step_losses: torch.Tensor,
        loss_sum: float,
        weight: float,
        correct: tuple[float, float],
    ) -> tuple[float, float, float | None]:
        """Return training loss, validation loss and accuracy over all ranks.

        Raises NonFiniteLossError on every rank if a loss isn't finite.
        """
        # Each step's loss is a mean over its batch, and the last batch may be smaller.
        sizes = [self._batch_images(number) for number in range(len(step_losses))]
        train_sum = float((step_losses * torch.tensor(sizes).double()).sum()) / self.team.size
        not_finite = torch.argwhere(~step_losses.isfinite()).flatten().tolist()
        own = train_sum, loss_sum, weight, correct, min(not_finite, default=math.inf)
        train_sums, loss_sums, weights, all_correct, first = zip(
            *self.team.all_gather_object(own), strict=True
        )
        validation_loss = sum(loss_sums) / sum(weights)
        where = None
        if math.isfinite(min(first)):
            where = f"at step {min(first) + 1} of {self.steps_per_epoch}"
        elif not math.isfinite(validation_loss):
            where = "in validation"
        if where:
            raise NonFiniteLossError(
                f"the loss is no longer finite: epoch {epoch + 1}, {where}. The training has "
                f"diverged: lower the learning rate in params.yaml "
                f"(it is {self.state.schedule.learning_rate:g})"
            )
        train_loss = sum(train_sums) / self.training.image_count
        right, predicted = map(sum, zip(*all_correct, strict=True))
        accuracy = right / predicted if predicted else 0.0
        return train_loss, validation_loss, None if self.task == "values" else accuracy

    def _batch_images(self, number: int) -> int:
        """Return the number of samples in the batch of this number, over all ranks."""
        batch_size = self.training.batch_size
        return min(batch_size, self.training.image_count - number * batch_size)
