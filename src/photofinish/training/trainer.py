"""The only training loop. The device is an argument; files, DVC and MLflow are none of its business.

It tells what happens through events. The timed pass over an epoch is never disturbed: inside it nothing is
logged, read back from the device or synchronised; the clock waits for the device at its two ends.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from photofinish.errors import UserError
from photofinish.results.epochs import EpochMetrics, EpochTiming
from photofinish.training.batches import Batch, Batches, steps_per_epoch
from photofinish.training.clock import Clock
from photofinish.training.optimisation import Schedule, build_optimizer
from photofinish.training.randomness import seed_epoch
from photofinish.training.teams import Team
from photofinish.training.torch_device import autocast, gradient_scaler, memory_format

if TYPE_CHECKING:
    from photofinish.params.experiment import Experiment


WARM_UP_STEPS = 3


class NonFiniteLossError(UserError):
    """The loss is no longer a number; going on would only waste time."""


@dataclass
class Progress:
    """Where a run is; all of it goes into a checkpoint."""

    epochs_done: int = 0
    metrics: list[EpochMetrics] = field(default_factory=list)
    timings: list[EpochTiming] = field(default_factory=list)


class RehearsedSteps(NamedTuple):
    step: Callable[[int, Batch, torch.amp.GradScaler | None], torch.Tensor]
    """the number of the batch in its epoch, the batch, and a scaler in the place of the training's own"""
    batch_ended: Callable[[], None]
    """what the training loop does after each step"""


class Trainer:
    """One network on one device, or on the devices of a team, from its first step to its last."""

    def __init__(
        self,
        experiment: Experiment,
        network: nn.Module,
        training: Batches,
        validation: Batches,
        device: torch.device,
        team: Team | None = None,
    ) -> None:
        self._experiment, self._device = experiment, device
        self._training, self._validation = training, validation
        self._team = team or Team(device)
        self._clock = Clock(device, self._team.barrier if self._team.size > 1 else None)
        self._steps_per_epoch = steps_per_epoch(training)
        self._memory_format = memory_format(network, device, experiment.precision)
        self.network = self._team.adapt(network.to(device, memory_format=self._memory_format))  # type: ignore[call-overload]
        self._parallel = self._team.parallel(self.network)
        self._optimizer = build_optimizer(experiment.optimizer, self.network.parameters())
        self._schedule = self._schedule_for(self._optimizer)
        self._scaler = gradient_scaler(device, experiment.precision)
        self.progress = Progress()
        self.steps_done = 0
        """Of the whole run, for a progress bar to read from another thread."""

    @property
    def experiment(self) -> Experiment:
        return self._experiment

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def training(self) -> Batches:
        return self._training

    @property
    def steps_per_epoch(self) -> int:
        return self._steps_per_epoch

    def warm_up(self) -> float:
        """A few steps for nothing, so that what happens only once (allocation, compilation) isn't timed as training."""
        started_seconds = self._clock.now_seconds()
        with self._rehearsal() as network:
            optimizer = build_optimizer(self._experiment.optimizer, network.parameters())
            network.train()
            for step, (images, labels) in enumerate(self._training.shuffled(0)):
                if step == WARM_UP_STEPS:
                    break
                scaler = gradient_scaler(self._device, self._experiment.precision)
                self._step(network, optimizer, step, images, labels, scaler)
            self._evaluate(network, most_batches=1)
        return self._clock.now_seconds() - started_seconds

    @contextmanager
    def rehearsed_step(self, *other_images: int) -> Iterator[list[Callable[[], object]]]:
        """A training step for nothing, as often as it is called: one on the first batch, then one for each number of
        other images, which are some of that batch or some of them several times. All train the same network."""
        first = next(iter(self._training.shuffled(0)))
        batches = [first, *(_of_so_many(first, images) for images in other_images)]
        with self.rehearsed_steps() as rehearsed:
            yield [partial(rehearsed.step, 0, batch, None) for batch in batches]

    @contextmanager
    def rehearsed_steps(self) -> Iterator[RehearsedSteps]:
        """Training steps on any batches, for nothing."""
        with self._rehearsal() as network:
            optimizer = build_optimizer(self._experiment.optimizer, network.parameters())
            schedule = self._schedule_for(optimizer)
            own_scaler = gradient_scaler(self._device, self._experiment.precision)
            network.train()

            def step(number: int, batch: Batch, scaler: torch.amp.GradScaler | None) -> torch.Tensor:
                return self._step(network, optimizer, number, *batch, scaler or own_scaler)

            yield RehearsedSteps(step, schedule.batch_ended)

    @contextmanager
    def rehearsing_in(self, layout: torch.memory_format) -> Iterator[None]:
        """Rehearsals with weights and images that lie in memory otherwise than the training's."""
        own, self._memory_format = self._memory_format, layout
        try:
            yield
        finally:  # also where its memory doesn't suffice
            self._memory_format = own

    @contextmanager
    def _rehearsal(self) -> Iterator[nn.Module]:
        """What the warm-up may train: a copy, or with several processes the network itself, which is put back then.

        DDP settles after its first step in which order it adds gradients up, for as long as it lives. A resumed run
        must add in the same order as one that was never stopped, so both have that step behind them.
        """
        if self._team.size == 1:
            yield self._team.parallel(copy.deepcopy(self.network).to(memory_format=self._memory_format))
            return
        before = copy.deepcopy(self.network.state_dict())
        yield self._parallel
        self.network.load_state_dict(before)
        self._optimizer.zero_grad()

    def train(self, on_epoch: Callable[[EpochMetrics, EpochTiming], None]) -> Progress:
        """Train the epochs that are left; `on_epoch` runs between epochs, outside every timed pass."""
        for epoch in range(self.progress.epochs_done, self._experiment.epochs):
            metrics, timing = self._epoch(epoch)
            self.progress.metrics.append(metrics)
            self.progress.timings.append(timing)
            self.progress.epochs_done = epoch + 1
            on_epoch(metrics, timing)
        return self.progress

    def forget_optimizer(self) -> None:
        """What only further training would need: the memory is for what is measured after it."""
        self._optimizer.zero_grad()
        self._optimizer.state.clear()

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
        seed_epoch(self._experiment.seed, epoch, self._team.rank)
        learning_rate = self._schedule.learning_rate
        started_seconds = self._clock.now_seconds()
        losses = self._training_pass(epoch)
        trained_seconds = self._clock.now_seconds()
        validation = self._evaluate(self._parallel)
        validated_seconds = self._clock.now_seconds()
        parts = self._team.gather([self._sum_over_images(losses), *validation, _first_not_finite(losses)])
        training_loss_sum, validation_loss_sum, hits, _ = map(sum, zip(*parts, strict=True))
        validation_loss = validation_loss_sum / self._validation.image_count
        self._refuse_non_finite(epoch, min(first for *_, first in parts), validation_loss)
        self._schedule.epoch_ended(validation_loss)
        metrics = EpochMetrics(
            epoch + 1,
            learning_rate,
            training_loss_sum / self._training.image_count,
            validation_loss,
            hits / self._validation.image_count,
        )
        return metrics, EpochTiming(trained_seconds - started_seconds, validated_seconds - trained_seconds, time.time())

    def _training_pass(self, epoch: int) -> torch.Tensor:
        """One pass over the training images; the loss of each step, still on the device."""
        self.network.train()
        losses = []
        for step, (images, labels) in enumerate(self._training.shuffled(epoch)):
            losses.append(self._step(self._parallel, self._optimizer, step, images, labels, self._scaler))
            self._schedule.batch_ended()
            self.steps_done += 1
        return torch.stack(losses)

    def _step(
        self,
        network: nn.Module,
        optimizer: torch.optim.Optimizer,
        step: int,
        images: torch.Tensor,
        labels: torch.Tensor,
        scaler: torch.amp.GradScaler,
    ) -> torch.Tensor:
        with autocast(self._device, self._experiment.precision):
            loss = self._loss(network(images.contiguous(memory_format=self._memory_format)), labels, step)
        optimizer.zero_grad()
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    def _loss(self, outputs: torch.Tensor, labels: torch.Tensor, step: int) -> torch.Tensor:
        """The mean over the batch. A process that has a share of it gives such a part that DDP, which takes the mean
        over the processes, arrives at the gradient of the mean over the whole batch, however uneven the shares."""
        if self._team.size == 1:
            return cross_entropy(outputs, labels)
        return cross_entropy(outputs, labels, reduction="sum") * (self._team.size / self._batch_images(step))

    @torch.inference_mode()
    def _evaluate(self, network: nn.Module, most_batches: int | None = None) -> tuple[float, float]:
        """The sum of the losses and the hits, of this process's validation images; read back from the device once."""
        network.eval()
        losses, hits = [], []
        for batch, (images, labels) in enumerate(self._validation.in_order()):
            if batch == most_batches:
                break
            with autocast(self._device, self._experiment.precision):
                outputs = network(images.contiguous(memory_format=self._memory_format))
            losses.append(cross_entropy(outputs.float(), labels, reduction="sum"))
            hits.append((outputs.argmax(dim=1) == labels).sum())
        return torch.stack(losses).cpu().double().sum().item(), torch.stack(hits).sum().item()

    def _sum_over_images(self, losses: torch.Tensor) -> float:
        """Each step's loss is a mean over its batch (see `_loss`), and the last batch may be smaller."""
        sizes = torch.tensor([self._batch_images(step) for step in range(len(losses))], dtype=torch.float64)
        return float((losses.cpu().double() * sizes).sum()) / self._team.size

    def _batch_images(self, step: int) -> int:
        """How many images the batch of this step has, over all processes."""
        return min(self._training.batch_size, self._training.image_count - step * self._training.batch_size)

    def _refuse_non_finite(self, epoch: int, first_step: float, validation_loss: float) -> None:
        """Every process comes to the same end: `first_step` is the earliest in any of them, infinite for none."""
        if math.isinf(first_step) and math.isfinite(validation_loss):
            return
        where = "in validation"
        if math.isfinite(first_step):
            where = f"at step {int(first_step) + 1} of {self._steps_per_epoch}"
        optimizer, schedule = self._experiment.optimizer, self._experiment.schedule
        key, rate = ("optimizer.lr", optimizer.lr)
        if schedule.name == "one_cycle":  # which takes its learning rates from this alone
            key, rate = ("schedule.max_lr", schedule.max_lr)
        raise NonFiniteLossError(
            f"the loss is no longer finite: epoch {epoch + 1}, {where}. The training has diverged: "
            f"lower {key} in params.yaml (it is {rate})"
        )


def _of_so_many(batch: Batch, images: int) -> Batch:
    rows = torch.arange(images, device=batch[0].device) % len(batch[0])
    return batch[0].index_select(0, rows), batch[1].index_select(0, rows.to(batch[1].device))


def _first_not_finite(losses: torch.Tensor) -> float:
    """The first step, from 0, whose loss is no number; infinite where there is none."""
    finite = torch.isfinite(losses)
    return math.inf if bool(finite.all()) else float((~finite).int().argmax())
