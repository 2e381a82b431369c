"""The only training loop. The device is an argument. The loop knows no files, no DVC and no MLflow.

The timed pass over an epoch is never disturbed: nothing is logged, read back from the device or synchronized inside
it. The clock waits for the device at both ends.
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
from photofinish.results import EpochMetrics, EpochTiming
from photofinish.training.batches import Batch, Batches, seed_epoch
from photofinish.training.optimisation import Loss, Schedule, build_optimizer
from photofinish.training.steps import Steps
from photofinish.training.teams import World
from photofinish.training.torch_device import (
    autocast,
    compile_network,
    gradient_scaler,
    memory_format,
    to_memory_format,
)

if TYPE_CHECKING:
    from photofinish.config.experiment import Experiment
    from photofinish.data import Task


class NonFiniteLossError(UserError):
    """The loss is no longer a number, so training on would waste time."""


@dataclass
class Progress:
    """State of a run, as its checkpoints hold it."""

    epochs_done: int = 0
    metrics: list[EpochMetrics] = field(default_factory=list)
    timings: list[EpochTiming] = field(default_factory=list)


def progress_in(state: dict[str, Any]) -> Progress:
    """Read the progress out of a trainer's `state_dict`."""
    done = state["progress"]
    metrics = [EpochMetrics(**each) for each in done["metrics"]]
    return Progress(done["epochs_done"], metrics, [EpochTiming(**each) for each in done["timings"]])


class TrainState(NamedTuple):
    """State that a training step changes: the network as a step calls it, its optimizer, schedule and scaler."""

    network: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: Schedule
    scaler: torch.amp.GradScaler
    memory_format: torch.memory_format
    """of the weights and of the images"""
    first_gradient: torch.Tensor | None = None
    """a 1 on the device, to start a captured backward pass with"""


class Trainer:
    """Trains one network on the devices of one team."""

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
        self.experiment, self.device, self.team = experiment, device, team or World(device)
        self.training, self.validation = training, validation
        self.task, self.criterion = task, Loss(experiment.loss, task, device)
        self.clock = self.team.clock()
        self.steps_per_epoch = -(-training.image_count // training.batch_size)
        layout = memory_format(network, device, experiment.precision)
        self.network = self.team.adapt(network.to(device, memory_format=layout))  # type: ignore[call-overload]
        if experiment.model.compile:
            compile_network(self.network, deterministic=experiment.deterministic)
        self.state = self.fresh_state(self.team.parallel(self.network), layout)
        self.steps = Steps()
        self.progress = Progress()
        self.steps_done = 0
        """in the whole run; a progress bar reads it from another thread"""

    def fresh_state(self, network: nn.Module, layout: torch.memory_format) -> TrainState:
        """Create a fresh optimizer, schedule and gradient scaler for `network`, whose memory format is `layout`."""
        experiment = self.experiment
        scaler = gradient_scaler(self.device, experiment.precision)
        optimizer = build_optimizer(experiment.optimizer, network.parameters(), loss_is_scaled=scaler.is_enabled())
        schedule = Schedule(
            experiment.schedule, optimizer, epochs=experiment.epochs, steps_per_epoch=self.steps_per_epoch
        )
        return TrainState(network, optimizer, schedule, scaler, layout)

    def epochs(self) -> Iterator[tuple[EpochMetrics, EpochTiming]]:
        """Train the epochs that are left, and yield what each gave. No timed pass is open then."""
        for epoch in range(self.progress.epochs_done, self.experiment.epochs):
            metrics, timing = self._epoch(epoch)
            self.progress.metrics.append(metrics)
            self.progress.timings.append(timing)
            self.progress.epochs_done = epoch + 1
            yield metrics, timing

    def state_dict(self) -> dict[str, Any]:
        """Return all that the rest of the run depends on. Batch order and dropout follow from seed and epoch."""
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

    def loss(self, state: TrainState, number: int, batch: Batch) -> torch.Tensor:
        """Return the mean loss over the epoch's batch of this number, from 0, or this rank's part of that mean."""
        images, labels = batch
        with autocast(self.device, self.experiment.precision):
            outputs = state.network(to_memory_format(images, state.memory_format))
            if self.team.size == 1:
                return self.criterion.mean(outputs, labels)
            # DDP takes the mean of gradients over ranks. Scaled like this, it gets the gradient of the mean over the
            # whole batch, however uneven the shares.
            total, weight = self.criterion.parts(outputs, labels)
            whole = self.team.all_reduce(weight) if isinstance(weight, torch.Tensor) else self._batch_images(number)
            return total * (self.team.size / whole)

    def step(self, state: TrainState, number: int, batch: Batch, rate: torch.Tensor | None = None) -> torch.Tensor:
        """Take one training step on the epoch's batch of this number, from 0. Returns the loss, still on the device.

        The learning rate is the schedule's, unless `rate` holds another one on the device.
        """
        loss = self.loss(state, number, batch)
        state.optimizer.zero_grad()
        state.scaler.scale(loss).backward(state.first_gradient)  # type: ignore[no-untyped-call]
        with state.schedule.applied(rate):
            state.scaler.step(state.optimizer)
        state.scaler.update()
        return loss.detach()

    @torch.inference_mode()
    def evaluate(self, state: TrainState, batches: Iterable[Batch]) -> tuple[float, float, float]:
        """Return this rank's summed loss, summed loss weight and number of correct predictions.

        Synchronizes once, at the end.
        """
        state.network.eval()
        losses, weights, hits = [], [], []
        for images, labels in batches:
            with autocast(self.device, self.experiment.precision):
                outputs = state.network(to_memory_format(images, state.memory_format))
            loss, weight = self.criterion.parts(outputs.float(), labels)
            losses.append(loss)
            weights.append(weight)
            hits.append(self.criterion.right(outputs, labels))
        loss_sum = torch.stack(losses).cpu().double().sum().item()
        return loss_sum, float(sum(weights)), torch.stack(hits).sum().item()

    def _epoch(self, epoch: int) -> tuple[EpochMetrics, EpochTiming]:
        seed_epoch(self.experiment.seed, epoch, self.team.rank)
        learning_rate = self.state.schedule.learning_rate
        self.network.train()
        started_seconds = self.clock.now_seconds()
        losses = []
        for of_steps in self.steps.epoch(self, self.state, epoch):
            losses.append(of_steps)
            self.steps_done += of_steps.numel()
        if epoch + 1 < self.experiment.epochs:
            self.training.prepare(epoch + 1)  # while an accelerator still computes
        trained_seconds = self.clock.now_seconds()
        validation = self.evaluate(self.state, self.validation.eval_batches())
        validated_seconds = self.clock.now_seconds()
        step_losses = torch.cat([each.reshape(-1) for each in losses]).cpu().double()
        # Each step's loss is a mean over its batch (see `step`), and the last batch may be smaller.
        sizes = torch.tensor([self._batch_images(step) for step in range(len(step_losses))], dtype=torch.float64)
        loss_sum = float((step_losses * sizes).sum()) / self.team.size
        first_not_finite = min(torch.argwhere(~step_losses.isfinite()).flatten().tolist(), default=math.inf)
        parts = self.team.gather([loss_sum, *validation, first_not_finite])
        training_loss_sum, validation_loss_sum, weight, hits, _ = map(sum, zip(*parts, strict=True))
        if not weight:
            raise UserError(
                "the loss gives each image of the validation part a weight of 0, so there is no validation loss: "
                "give their classes a weight, or validate on more images"
            )
        validation_loss = validation_loss_sum / weight
        self._refuse_non_finite(epoch, min(first for *_, first in parts), validation_loss)
        self.state.schedule.epoch_ended(validation_loss)
        metrics = EpochMetrics(
            epoch + 1,
            learning_rate,
            training_loss_sum / self.training.image_count,
            validation_loss,
            None if self.task == "values" else hits / self.validation.image_count,
        )
        return metrics, EpochTiming(trained_seconds - started_seconds, validated_seconds - trained_seconds, time.time())

    def _batch_images(self, number: int) -> int:
        """Return the number of images in the batch of this number, over all ranks."""
        return min(self.training.batch_size, self.training.image_count - number * self.training.batch_size)

    def _refuse_non_finite(self, epoch: int, first_step: float, validation_loss: float) -> None:
        """Raise NonFiniteLossError on every rank. `first_step` is the earliest on any rank, from 0, or infinite."""
        if math.isinf(first_step) and math.isfinite(validation_loss):
            return
        failed_in_training = math.isfinite(first_step)
        where = f"at step {int(first_step) + 1} of {self.steps_per_epoch}" if failed_in_training else "in validation"
        schedule = self.experiment.schedule
        key, rate = "optimizer.lr", self.experiment.optimizer.lr
        if schedule.name == "one_cycle":  # ignores optimizer.lr
            key, rate = "schedule.max_lr", schedule.max_lr
        raise NonFiniteLossError(
            f"the loss is no longer finite: epoch {epoch + 1}, {where}. The training has diverged: "
            f"lower {key} in params.yaml (it is {rate})"
        )
