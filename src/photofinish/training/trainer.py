"""The only training loop. The device is an argument. The loop knows no files, no DVC and no MLflow.

The timed pass over an epoch is never disturbed: nothing is logged, read back from the device or
synchronized inside it. The clock waits for the device at both ends.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from photofinish.errors import ConfigError
from photofinish.nested import call_with, leaves, map_nested, samples_in
from photofinish.results import EpochMetrics, EpochTiming
from photofinish.training.averaging import AveragedWeights
from photofinish.training.batches import Batch, Batches, seed_epoch
from photofinish.training.custom_step import BatchTransform, CustomStep
from photofinish.training.failures import NonFiniteLossError
from photofinish.training.losses import Loss
from photofinish.training.optimization import (
    Schedule,
    build_optimizers,
    check_several_optimizers,
)
from photofinish.training.state import Progress, TrainState, progress_in
from photofinish.training.steps import Steps, split_batch
from photofinish.training.torch_device import (
    CPU,
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


PLAIN_STEPS: dict[str, Any] = {
    "warmup_steps": 0, "clip_grad_norm": None, "accumulate": 1, "ema": None,
    "early_stopping": None, "sampler": None, "batch_transform": None, "step": None,
    "validation_step": None,
}  # fmt: skip
"""Settings of plain steps, for experiments that are made without pydantic."""


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
        classes: int = 0,
    ) -> None:
        self.experiment, self.device, self.task = experiment, device, task
        self.training, self.validation = training, validation
        self.team = team or World(device)
        self.clock = self.team.clock()
        self.criterion = Loss.of(experiment, task, self.team.output_device)
        self.custom_step = CustomStep(experiment.step) if experiment.step else None
        last = training.image_count % training.batch_size
        if self.custom_step and 0 < last < self.team.size:
            raise ConfigError(
                f"batch_size {training.batch_size} leaves {last} samples for the last batch of "
                f"{self.team.size} processes, and a step needs one in each: set another"
            )
        validation_step = experiment.validation_step
        self.validation_step = CustomStep(validation_step) if validation_step else self.custom_step
        self.batch_transform = None
        if experiment.batch_transform:
            self.batch_transform = BatchTransform(
                experiment.batch_transform, experiment.seed, classes
            )
        self.steps_per_epoch = -(-training.image_count // training.batch_size)
        layout = memory_format(network, device, experiment.precision)
        network.to(device, memory_format=layout)  # type: ignore[call-overload]
        self.network = self.team.adapt(network)
        if experiment.model.compile:
            compile_network(self.network, deterministic=experiment.deterministic)
        self.state = self.fresh_state(self.team.parallel(self.network), layout)
        self.steps = Steps()
        self.progress = Progress()
        self.best_weights: dict[str, torch.Tensor] = {}
        """Weights of the best epoch, on the CPU, with `early_stopping`."""
        self.steps_done = 0
        """Number of steps in the whole run. A progress bar reads it from another thread."""

    def fresh_state(self, network: nn.Module, layout: torch.memory_format) -> TrainState:
        """Create a fresh optimizer, schedule and gradient scaler for `network`."""
        experiment = self.experiment
        scaler = gradient_scaler(self.device, experiment.precision)
        network_itself = self.team.unwrapped(network)
        optimizers = build_optimizers(
            experiment.optimizer, network_itself, loss_is_scaled=scaler.is_enabled()
        )
        if len(optimizers) > 1:
            check_several_optimizers(experiment)
        schedule = self.fresh_schedule(optimizers[0])
        average = AveragedWeights(network_itself, experiment.ema) if experiment.ema else None
        return TrainState(network, optimizers, schedule, scaler, layout, average)

    def fresh_schedule(self, optimizer: torch.optim.Optimizer) -> Schedule:
        """Create the schedule of an optimizer, from its start."""
        return Schedule(
            self.experiment.schedule,
            optimizer,
            epochs=self.experiment.epochs,
            steps_per_epoch=self.steps_per_epoch,
            warmup_steps=self.experiment.warmup_steps,
        )

    @property
    def result(self) -> nn.Module:
        """Network that validation scores and the results keep: averaged with `ema`."""
        return self.state.average.network if self.state.average else self.network

    def state_dict(self) -> dict[str, Any]:
        """Return all that the rest of the run depends on.

        Batch order and dropout follow from seed and epoch.
        """
        return {
            "network": self.network.state_dict(),
            "average": self.state.average.network.state_dict() if self.state.average else {},
            "best": self.best_weights,
            "optimizers": [optimizer.state_dict() for optimizer in self.state.optimizers],
            "schedule": self.state.schedule.state_dict(),
            "scaler": self.state.scaler.state_dict(),
            "progress": asdict(self.progress),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.steps.release()  # captured steps read tensors that are replaced here
        self.network.load_state_dict(state["network"])
        if self.state.average:
            self.state.average.network.load_state_dict(state["average"])
        self.best_weights = state["best"]
        for optimizer, saved in zip(self.state.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.state.schedule.load_state_dict(state["schedule"])
        self.state.scaler.load_state_dict(state["scaler"])
        self.progress = progress_in(state)
        self.steps_done = self.progress.epochs_done * self.steps_per_epoch

    def epochs(self) -> Iterator[tuple[EpochMetrics, EpochTiming]]:
        """Train the remaining epochs. Nothing is timed while a caller handles what one gave."""
        while self.epochs_left():
            metrics, timing = self._epoch(self.progress.epochs_done)
            self.progress.add(metrics, timing)
            if self.progress.is_best(self.experiment.early_stopping):
                weights = self.result.state_dict()
                self.best_weights = {
                    name: weight.to(CPU, copy=True) for name, weight in weights.items()
                }
            yield metrics, timing
        if self.best_weights:
            self.steps.release()
            self.result.load_state_dict(self.best_weights)

    def epochs_left(self) -> int:
        """Return how many epochs are left. With `early_stopping` it may end before."""
        if self.progress.is_stopped(self.experiment.early_stopping):
            return 0
        return self.experiment.epochs - self.progress.epochs_done

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
            if self.batch_transform:
                batch = self.batch_transform(batch, epoch, number)
            losses = steps.take(self, state, number, batch)
            number += losses.numel()
            yield losses

    def step(
        self, state: TrainState, number: int, batch: Batch, rate: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Train on the epoch's batch of this number, from 0. Returns the loss, on the device.

        The learning rate is the schedule's, unless `rate` holds another one on the device.
        """
        if len(state.optimizers) > 1:
            return self._custom_steps(state, batch)
        if self.experiment.accumulate > 1:
            loss = self._accumulate(state, number, batch)
        else:
            loss = self.loss(state, number, batch)
            state.optimizer.zero_grad()
            state.scaler.scale(loss).backward(state.first_gradient)  # type: ignore[no-untyped-call]
        if self.experiment.clip_grad_norm:
            state.scaler.unscale_(state.optimizer)
            clip_grad_norm_(state.network.parameters(), self.experiment.clip_grad_norm)
        with state.schedule.applied(rate):
            state.scaler.step(state.optimizer)
        state.scaler.update()
        if state.average:
            state.average.update()
        return loss.detach()

    def _custom_steps(self, state: TrainState, batch: Batch) -> torch.Tensor:
        """Take a custom step of several optimizers."""
        assert self.custom_step
        with autocast(self.device, self.experiment.precision):
            loss = self.custom_step(state.network, self._as_input(state, batch), state.optimizers)
        if state.average:
            state.average.update()
        return loss.detach()

    def _accumulate(self, state: TrainState, number: int, batch: Batch) -> torch.Tensor:
        """Add up the gradients of the batch's parts, and return the loss of the whole batch.

        Weights of the loss are known only at the end, so the gradients are those of a mean over
        samples until then.
        """
        count = self._batch_images(number)
        size = max(1, -(-samples_in(batch[1]) // self.experiment.accumulate))
        parts = split_batch(batch, size)
        loss, weights = torch.zeros((), device=self.device), None
        state.optimizer.zero_grad()
        for part_number, part in enumerate(parts):
            is_last = part_number == len(parts) - 1
            with nullcontext() if is_last else self.team.no_sync(state.network):
                with autocast(self.device, self.experiment.precision):
                    total, weight = self._sum_and_weight(state, part)
                scaled = state.scaler.scale(total * (self.team.size / count))
                scaled.backward()  # type: ignore[no-untyped-call]
            loss += total.detach()
            if isinstance(weight, torch.Tensor):
                weights = weight if weights is None else weights + weight
        if weights is None:
            return loss * (self.team.size / count)
        weights = self.team.all_reduce(weights)
        for parameter in state.network.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(count / weights)
        return loss * (self.team.size / weights)

    def _as_input(self, state: TrainState, batch: Batch) -> Batch:
        """Return a batch as the network takes it."""
        return to_memory_format(batch[0], state.memory_format), batch[1]

    def _sum_and_weight(
        self, state: TrainState, batch: Batch
    ) -> tuple[torch.Tensor, torch.Tensor | int]:
        """Return the batch's summed loss, and what to divide it by for a mean."""
        if self.custom_step:
            loss = self.custom_step(state.network, self._as_input(state, batch))
            count = samples_in(batch[1])
            return loss * count, count
        images, labels = batch
        outputs = call_with(state.network, to_memory_format(images, state.memory_format))
        return self.criterion.sum_and_weight(outputs, _beside(outputs, labels))

    def loss(self, state: TrainState, number: int, batch: Batch) -> torch.Tensor:
        """Return the batch's mean loss. With several ranks, it is scaled for DDP."""
        with autocast(self.device, self.experiment.precision):
            if self.custom_step and self.team.size == 1:
                return self.custom_step(state.network, self._as_input(state, batch))
            if self.team.size == 1:
                images, labels = batch
                outputs = call_with(state.network, to_memory_format(images, state.memory_format))
                return self.criterion.mean(outputs, _beside(outputs, labels))
            # DDP averages gradients over ranks. Scaled like this, that gives the gradient of the
            # mean over the whole batch, however uneven the shares.
            total, weight = self._sum_and_weight(state, batch)
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
        network = state.network
        if state.average:
            state.average.copy_buffers()
            network = state.average.network
        network.eval()
        losses, correct, predicted = [], [], []
        weights: list[torch.Tensor | int] = []
        for images, labels in batches:
            if self.validation_step:
                with autocast(self.device, self.experiment.precision):
                    loss = self.validation_step(network, self._as_input(state, (images, labels)))
                count = samples_in(labels)
                losses.append(loss.float() * count if count else torch.zeros_like(loss.float()))
                weights.append(count)
                continue
            with autocast(self.device, self.experiment.precision):
                outputs = call_with(network, to_memory_format(images, state.memory_format))
            labels = _beside(outputs, labels)
            loss, weight = self.criterion.sum_and_weight(
                map_nested(torch.Tensor.float, outputs), labels
            )
            losses.append(loss)
            weights.append(weight)
            correct.append(self.criterion.num_correct(outputs, labels))
            predicted.append(self.criterion.num_predictions(labels))
        loss_sum = torch.stack(losses).cpu().double().sum().item()
        hits = torch.stack(correct).sum().item() if correct else 0.0
        right = hits, float(sum(predicted))
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
        has_accuracy = self.task in ("classes", "labels") and not self.validation_step
        accuracy = right / predicted if predicted else 0.0
        return train_loss, validation_loss, accuracy if has_accuracy else None

    def _batch_images(self, number: int) -> int:
        """Return the number of samples in the batch of this number, over all ranks."""
        batch_size = self.training.batch_size
        return min(batch_size, self.training.image_count - number * batch_size)


def _beside(outputs: Any, labels: Any) -> Any:
    """Move targets to the device of a network's outputs."""
    if isinstance(outputs, torch.Tensor) and isinstance(labels, torch.Tensor):  # fast
        return labels.to(outputs.device, non_blocking=True)
    device = leaves(outputs)[0].device
    return map_nested(lambda part: part.to(device, non_blocking=True), labels)
