"""The only training loop. The device is an argument; files, DVC and MLflow are none of its business.

It tells what happens through events. The timed pass over an epoch is never disturbed: inside it nothing is
logged, read back from the device or synchronised; the clock waits for the device at its two ends.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from photofinish.batches import Batches, steps_per_epoch
from photofinish.clock import Clock
from photofinish.devices import autocast, gradient_scaler
from photofinish.epochs import EpochMetrics, EpochTiming
from photofinish.errors import UserError
from photofinish.optimisation import Schedule, build_optimizer
from photofinish.randomness import seed_epoch

if TYPE_CHECKING:
    from photofinish.params import Experiment

WARM_UP_STEPS = 3


class NonFiniteLossError(UserError):
    """The loss is no longer a number; going on would only waste time."""


@dataclass
class Progress:
    """Where a run is; all of it goes into a checkpoint."""

    epochs_done: int = 0
    metrics: list[EpochMetrics] = field(default_factory=list)
    timings: list[EpochTiming] = field(default_factory=list)


class Trainer:
    """One network on one device, from its first step to its last."""

    def __init__(
        self, experiment: Experiment, network: nn.Module, training: Batches, validation: Batches, device: torch.device
    ) -> None:
        self._experiment, self._device = experiment, device
        self._training, self._validation = training, validation
        self._clock = Clock(device)
        self._steps_per_epoch = steps_per_epoch(training)
        self.network = network.to(device)
        self._optimizer = build_optimizer(experiment.optimizer, self.network.parameters())
        self._schedule = self._schedule_for(self._optimizer)
        self._scaler = gradient_scaler(device, experiment.precision)
        self.progress = Progress()
        self.steps_done = 0
        """Of the whole run, for a progress bar to read from another thread."""

    @property
    def steps_per_epoch(self) -> int:
        return self._steps_per_epoch

    def warm_up(self) -> float:
        """A few steps on a copy, so that what happens only once (allocation, compilation) isn't timed as training."""
        started_seconds = self._clock.now_seconds()
        network = copy.deepcopy(self.network)
        optimizer = build_optimizer(self._experiment.optimizer, network.parameters())
        network.train()
        for step, (images, labels) in enumerate(self._training.shuffled(0)):
            if step == WARM_UP_STEPS:
                break
            self._step(network, optimizer, images, labels, gradient_scaler(self._device, self._experiment.precision))
        self._evaluate(network, most_batches=1)
        return self._clock.now_seconds() - started_seconds

    def train(self, on_epoch: Callable[[EpochMetrics, EpochTiming], None]) -> Progress:
        """Train the epochs that are left; `on_epoch` runs between epochs, outside every timed pass."""
        for epoch in range(self.progress.epochs_done, self._experiment.epochs):
            metrics, timing = self._epoch(epoch)
            self.progress.metrics.append(metrics)
            self.progress.timings.append(timing)
            self.progress.epochs_done = epoch + 1
            on_epoch(metrics, timing)
        return self.progress

    def state_dict(self) -> dict[str, Any]:
        """All that the rest of the run depends on: the order of images and dropout follow from seed and epoch."""
        return {
            "network": self.network.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "schedule": self._schedule.state_dict(),
            "scaler": self._scaler.state_dict(),
            "progress": asdict(self.progress),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.network.load_state_dict(state["network"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._schedule.load_state_dict(state["schedule"])
        self._scaler.load_state_dict(state["scaler"])
        done = state["progress"]
        self.progress = Progress(
            done["epochs_done"],
            [EpochMetrics(**metrics) for metrics in done["metrics"]],
            [EpochTiming(**timing) for timing in done["timings"]],
        )
        self.steps_done = self.progress.epochs_done * self._steps_per_epoch

    def _schedule_for(self, optimizer: torch.optim.Optimizer) -> Schedule:
        experiment = self._experiment
        return Schedule(experiment.schedule, optimizer, epochs=experiment.epochs, steps_per_epoch=self._steps_per_epoch)

    def _epoch(self, epoch: int) -> tuple[EpochMetrics, EpochTiming]:
        seed_epoch(self._experiment.seed, epoch)
        learning_rate = self._schedule.learning_rate
        started_seconds = self._clock.now_seconds()
        losses = self._training_pass(epoch)
        trained_seconds = self._clock.now_seconds()
        validation_loss, validation_accuracy = self._evaluate(self.network)
        validated_seconds = self._clock.now_seconds()
        training_loss = self._mean_over_images(losses)
        self._refuse_non_finite(epoch, losses, validation_loss)
        self._schedule.epoch_ended(validation_loss)
        metrics = EpochMetrics(epoch + 1, learning_rate, training_loss, validation_loss, validation_accuracy)
        return metrics, EpochTiming(trained_seconds - started_seconds, validated_seconds - trained_seconds, time.time())

    def _training_pass(self, epoch: int) -> torch.Tensor:
        """One pass over the training images; the loss of each step, still on the device."""
        self.network.train()
        losses = []
        for images, labels in self._training.shuffled(epoch):
            losses.append(self._step(self.network, self._optimizer, images, labels, self._scaler))
            self._schedule.batch_ended()
            self.steps_done += 1
        return torch.stack(losses)

    def _step(
        self,
        network: nn.Module,
        optimizer: torch.optim.Optimizer,
        images: torch.Tensor,
        labels: torch.Tensor,
        scaler: torch.amp.GradScaler,
    ) -> torch.Tensor:
        with autocast(self._device, self._experiment.precision):
            loss = cross_entropy(network(images), labels)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    @torch.inference_mode()
    def _evaluate(self, network: nn.Module, most_batches: int | None = None) -> tuple[float, float]:
        """Mean loss and accuracy over the validation images, read back from the device once."""
        network.eval()
        losses, hits = [], []
        for batch, (images, labels) in enumerate(self._validation.in_order()):
            if batch == most_batches:
                break
            with autocast(self._device, self._experiment.precision):
                outputs = network(images)
            losses.append(cross_entropy(outputs.float(), labels, reduction="sum"))
            hits.append((outputs.argmax(dim=1) == labels).sum())
        images_seen = self._validation.image_count
        loss = torch.stack(losses).cpu().double().sum().item() / images_seen
        return loss, int(torch.stack(hits).sum().item()) / images_seen

    def _mean_over_images(self, losses: torch.Tensor) -> float:
        """Each step's loss is a mean over its batch, and the last batch may be smaller."""
        sizes = torch.full((len(losses),), self._training.batch_size, dtype=torch.float64)
        sizes[-1] = self._training.image_count - (len(losses) - 1) * self._training.batch_size
        return float((losses.cpu().double() * sizes).sum() / sizes.sum())

    def _refuse_non_finite(self, epoch: int, losses: torch.Tensor, validation_loss: float) -> None:
        finite = torch.isfinite(losses)
        if bool(finite.all()) and math.isfinite(validation_loss):
            return
        where = "in validation"
        if not bool(finite.all()):
            step = int((~finite).int().argmax())
            where = f"at step {step + 1} of {len(losses)}"
        optimizer, schedule = self._experiment.optimizer, self._experiment.schedule
        key, rate = ("optimizer.lr", optimizer.lr)
        if schedule.name == "one_cycle":  # which takes its learning rates from this alone
            key, rate = ("schedule.max_lr", schedule.max_lr)
        raise NonFiniteLossError(
            f"the loss is no longer finite: epoch {epoch + 1}, {where}. The training has diverged: "
            f"lower {key} in params.yaml (it is {rate})"
        )
