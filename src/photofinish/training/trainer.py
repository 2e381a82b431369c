"""The training loop. It works for any device, and uses no files, no DVC and no MLflow.

`prepare` warms up and chooses how steps are launched, and `epochs` trains. A step and its optimizer
are in step.py and optimizer.py, and the loss in losses.py. graphs.py captures steps.

Within an epoch's timed pass, the loop logs nothing and reads nothing back from the device. The
clock waits for the device before and after the pass. Validation reads back once, at its end.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import count, islice, repeat
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from photofinish.results import EpochMetrics, EpochTiming, TimedPart
from photofinish.training.batches import (
    Batch,
    Batches,
    BatchTransform,
    Wait,
    noting_waits,
    seed_epoch,
)
from photofinish.training.failures import check_finite
from photofinish.training.graphs import GraphedSteps, Steps, choose_steps
from photofinish.training.learning_rates import LearningRates
from photofinish.training.losses import Loss
from photofinish.training.optimizer import build_optimizers, check_several_optimizers
from photofinish.training.state import AveragedWeights, Progress, TrainedPart, TrainState, put_back
from photofinish.training.step import Step
from photofinish.training.torch_device import (
    CPU,
    free_memory_bytes,
    is_accelerator,
    memory_format,
)
from photofinish.training.validation import Sums, Validator
from photofinish.training.warm_up import WarmUp, capture_steps, largest_batch, run_each_size
from photofinish.training.world import World

if TYPE_CHECKING:
    from photofinish.config.experiment import Experiment
    from photofinish.config.losses_and_metrics import Metric
    from photofinish.data import TaskName

WARM_UP_SECONDS = 0.2
"""Time that an idle accelerator needs to reach its full clock, by hand."""
_LARGE_SHARE = 0.1
"""Share of the free memory above which a network is not copied."""


class Trainer:
    def __init__(
        self,
        experiment: Experiment,
        network: nn.Module,
        training: Batches,
        validation: Batches | None,
        device: torch.device,
        team: World | None = None,
        task: TaskName = "classes",
        classes: int = 0,
        monitored: Metric | None = None,
    ) -> None:
        self.experiment, self.device = experiment, device
        self.training, self.validation = training, validation
        self.team = team or World(device)
        self.clock = self.team.clock()
        self.criterion = Loss.of(experiment, task, self.team.output_device)
        self.step = Step(experiment, self.criterion, self.team, training)
        self.steps: Steps = self.step
        """How steps are launched, chosen by `prepare`."""
        self.validator = Validator(experiment, self.criterion, self.step, self.team, monitored)
        self.batch_transform: BatchTransform | None = None
        if transform := experiment.batch_transform:
            self.batch_transform = BatchTransform(transform, experiment.seed, classes)
        self.steps_per_epoch = training.steps
        layout = memory_format(network, device, experiment.precision)
        network.to(device, memory_format=layout)  # type: ignore[call-overload]
        self.network = self.team.adapt(network)
        if experiment.model.compile:  # if deterministic, Inductor doesn't time kernels
            torch.use_deterministic_algorithms(experiment.deterministic)
            self.network.compile(dynamic=False)  # separately for each batch size
        self.state = self.fresh_state(self.network, layout)
        self.progress = Progress()
        self.last_epoch: int | None = None
        """Last epoch, if a time limit ends the training. A resumed training decides again."""
        self.best_weights: dict[str, torch.Tensor] = {}
        """Weights of the best epoch, on the CPU. Empty without `early_stopping`."""
        self.steps_done = 0
        """Number of steps so far. A progress bar reads it from another thread."""

    def fresh_state(
        self, network: nn.Module, layout: torch.memory_format, wrapped: nn.Module | None = None
    ) -> TrainState:
        is_scaled = self.experiment.precision == "fp16"
        scaler = torch.amp.GradScaler(self.device.type, enabled=is_scaled)
        optimizers = build_optimizers(self.experiment.optimizer, network, loss_is_scaled=is_scaled)
        if len(optimizers) > 1:
            check_several_optimizers(self.experiment)
        schedule = LearningRates(self.experiment, optimizers[0], self.steps_per_epoch)
        if wrapped is None:  # not before: DDP must see which layers an optimizer froze
            wrapped = self.team.parallel(network)
        average = AveragedWeights(network, self.experiment.ema) if self.experiment.ema else None
        return TrainState(wrapped, optimizers, schedule, scaler, layout, average)

    @property
    def result(self) -> nn.Module:
        """Network that is validated and saved. With `ema`, the averaged network."""
        return self.state.average.network if self.state.average else self.network

    def epochs(self) -> Iterator[tuple[EpochMetrics, EpochTiming]]:
        """Train the remaining epochs.

        Epoch times do not include the caller's work between epochs. There, the caller may set
        `last_epoch`.
        """
        while self.epochs_left():
            metrics, timing = self._epoch(self.progress.epochs_done)
            self.progress.add(metrics, timing)
            rule = self.experiment.early_stopping
            if rule and self.progress.epochs_without_better(rule) == 0:
                weights = self.result.state_dict().items()
                self.best_weights = {
                    name: weight.to(CPU, copy=True, non_blocking=True) for name, weight in weights
                }
                self.clock.now_seconds()  # waits once for the device
            yield metrics, timing
        if self.best_weights:
            self.release()
            self.result.load_state_dict(self.best_weights)

    def epochs_left(self) -> int:
        """Return how many epochs are left. With `early_stopping`, training may end earlier."""
        if self.progress.is_stopped(self.experiment.early_stopping):
            return 0
        # A further seed's checkpoint may be from a longer limit.
        return max(0, (self.last_epoch or self.experiment.epochs) - self.progress.epochs_done)

    def epochs_left_out(self) -> int:
        if self.progress.is_stopped(self.experiment.early_stopping):
            return 0
        return self.experiment.epochs - (self.last_epoch or self.experiment.epochs)

    def _epoch(self, epoch: int) -> tuple[EpochMetrics, EpochTiming]:
        """Train and validate one epoch. Read training losses back after both passes are timed.

        Raises UserError on every rank if a loss isn't finite.
        """
        learning_rate = self.state.schedule.rates[0]
        ((timed, losses, trained_seconds),) = self.parts(epoch)
        sums = self.validate()
        monitored = self.validator.monitored(sums.judged)
        validation_seconds = self.clock.now_seconds() - trained_seconds

        step_losses = torch.cat([loss.reshape(-1) for loss in losses]).cpu().double()
        # Each step's loss is a mean over its batch, and the last batch may be smaller.
        sizes = [self.training.batch_samples(number) for number in range(len(step_losses))]
        train_sum = float((step_losses * torch.tensor(sizes).double()).sum()) / self.team.size
        not_finite = torch.argwhere(~step_losses.isfinite()).flatten().tolist()
        first_failing = min(not_finite, default=math.inf)
        own = train_sum, sums.loss, sums.weight, sums.correct, sums.predicted, first_failing
        train_sums, val_sums, weights, correct, predicted, first = zip(
            *self.team.all_gather_object(own), strict=True
        )
        validates = self.validation is not None
        validation_loss = sum(val_sums) / sum(weights) if validates else None
        rate = self.state.schedule.rates[0]
        seed = self.experiment.seed
        check_finite(seed, epoch, min(first), self.steps_per_epoch, validation_loss, rate)
        train_loss = sum(train_sums) / self.training.image_count
        has_accuracy = validates and self.validator.has_accuracy
        accuracy = sum(correct) / max(1, sum(predicted)) if has_accuracy else None
        metrics = EpochMetrics(
            epoch + 1, learning_rate, train_loss, validation_loss, accuracy, monitored
        )
        self.state.schedule.epoch_ended(validation_loss)
        return metrics, EpochTiming(timed.seconds, validation_seconds, time.time())

    def parts(
        self, epoch: int, part_steps: int | None = None, *, notes_waits: bool = False
    ) -> Iterator[TrainedPart]:
        """Train an epoch. Yield its start, then parts of `part_steps` steps. Default: one part.

        Steps that are launched together are in the same part. What the caller does between parts
        is not timed. With `notes_waits`, a part on the CPU has the time of its waits for batches.
        """
        seed_epoch(self.experiment.seed, epoch, self.team.rank)
        self.state.network.train()
        # An accelerator may compute while the host waits.
        waits = list[Wait]() if notes_waits and self.device == CPU else None
        launched = self.take_steps(self.state, self.train_batches(epoch, waits))
        left, size = self.training.image_count, self.training.batch_size
        holds: Literal["start", "steps", "epoch"] = "start" if part_steps else "epoch"
        launches = 1 if part_steps else None
        while left > 0:
            began_seconds, began_steps = self.clock.now_seconds(), self.steps_done
            if launches:  # else the last part would have the end of the loader, which has no step
                launches = min(launches, -(-left // (size * self.steps.at_once)))
            losses = list(islice(launched, launches))
            if not losses:
                raise RuntimeError(f"epoch {epoch + 1} ended {left} samples early")
            ended_seconds = self.clock.now_seconds()
            samples = min(left, (self.steps_done - began_steps) * size)
            timed = TimedPart(ended_seconds - began_seconds, samples / size, epoch, holds)
            if waits:
                seconds, cpu_seconds = map(sum, zip(*waits, strict=True))
                timed = replace(timed, waiting_seconds=seconds, waiting_cpu_seconds=cpu_seconds)
                waits.clear()
            yield TrainedPart(timed, losses, ended_seconds)
            left -= samples
            if part_steps:
                holds, launches = "steps", -(-part_steps // self.steps.at_once)

    def take_steps(self, state: TrainState, batches: Iterable[Batch]) -> Iterator[torch.Tensor]:
        """Train on an epoch's batches. Yield each step's loss, or the losses of captured steps."""
        number = 0
        for batch in batches:
            losses = self.steps(state, number, batch)
            steps = losses.numel()
            number += steps
            self.steps_done += steps
            del batch  # so that the next one reuses its memory, which is in the cache
            yield losses

    def validate(self) -> Sums:
        if self.validator.is_captured:
            return self.validator.replay()
        batches = self.validation.eval_batches() if self.validation else ()
        return self.validator.evaluate(self.state, batches)

    def train_batches(self, epoch: int, waits: list[Wait] | None = None) -> Iterator[Batch]:
        """Return an epoch's batches. Batches for steps that are launched together are joined.

        With resident input, this call computes the epoch's order, before the first batch is timed.
        Waits for batches are added to `waits`, without the transform of a batch.
        """
        batches = self.training.train_batches(epoch, self.steps.at_once)
        if waits is not None:
            batches = noting_waits(batches, waits)
        if transform := self.batch_transform:
            return map(transform, batches, repeat(epoch), count())  # holds no batch
        return batches

    def prepare(self) -> WarmUp:
        """Warm the device up, then choose how steps are launched. Return the time that it took.

        Allocation, compilation and capture happen here, so that epochs have no first-time costs,
        except in a `batch_transform`. Peak memory is counted after the choice.
        """
        started_seconds = self.clock.now_seconds()
        planned_size = largest_batch(self.validation)
        with self.scratch_copy() as state:
            first_seconds = run_each_size(self, state)
            while not self.is_awake(started_seconds):
                run_each_size(self, state)
        self.steps = choose_steps(self)
        self.team.forget_peak_memory()
        if isinstance(self.steps, GraphedSteps):
            capture_steps(self, self.steps)
        if (size := largest_batch(self.validation)) < planned_size:
            self.steps.why += (
                f"; validation takes {size} samples at once, as memory is too small for "
                f"{planned_size}, which may change its last digits"
            )
        return WarmUp(self.clock.now_seconds() - started_seconds, first_seconds)

    def is_awake(self, started_seconds: float) -> bool:
        """Return True if the device has worked long enough to run at its full clock.

        Rank 0's clock decides for all ranks.
        """
        needed_seconds = WARM_UP_SECONDS if is_accelerator(self.device) else 0.0
        passed_seconds = self.clock.now_seconds() - started_seconds
        return bool(self.team.broadcast_object(passed_seconds >= needed_seconds))

    @contextmanager
    def scratch_copy(self, layout: torch.memory_format | None = None) -> Iterator[TrainState]:
        """Yield a fresh state to train and throw away. The network does not change.

        * Usually the state has a copy of the network, in any memory format.
        * A network that is large for its device is trained itself and put back, as a copy and its
          optimizer might not fit beside it.
        * With several processes or a compiled network, the network itself is trained and restored.
          DDP's first step fixes the order in which it adds up gradients. A resumed run must add in
          the same order as a run that was never stopped, so both take that step here.
        """
        network, state = self.network, self.state
        layout = layout or state.memory_format
        if self.is_large() and layout is state.memory_format:
            with put_back(state):
                network.train()
                schedule = LearningRates(self.experiment, state.optimizer, self.steps_per_epoch)
                yield state._replace(schedule=schedule)
        # A copy of a compiled network would be compiled again.
        elif self.team.size == 1 and not self.experiment.model.compile:
            scratch = copy.deepcopy(network).to(memory_format=layout)
            yield self.fresh_state(scratch.train(), layout)
        else:
            before = copy.deepcopy(network.state_dict())
            try:
                yield self.fresh_state(network, layout, state.network.train())
            finally:  # a step that fails for lack of memory must not change the result
                network.load_state_dict(before)
                network.zero_grad()

    def is_large(self) -> bool:
        if self.team.size > 1 or self.experiment.model.compile:
            return False
        free_bytes = free_memory_bytes(self.device)
        weights_bytes = sum(parameter.nbytes for parameter in self.network.parameters())
        return free_bytes is not None and weights_bytes > _LARGE_SHARE * free_bytes

    def release(self) -> None:
        if isinstance(self.steps, GraphedSteps):
            self.steps.release()
        self.validator.release()

    def forget_optimizer(self) -> None:
        """Free graphs, gradients and optimizer state, which only further training needs."""
        self.release()
        for optimizer in self.state.optimizers:
            optimizer.zero_grad()
            optimizer.state.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return all state that the rest of the run depends on.

        Seed and epoch determine batch order and dropout, which need no state.
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
        self.release()  # captured steps read tensors that are replaced below
        self.network.load_state_dict(state["network"])
        if self.state.average:
            self.state.average.network.load_state_dict(state["average"])
        self.best_weights = state["best"]
        for optimizer, saved in zip(self.state.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.state.schedule.load_state_dict(state["schedule"])
        self.state.scaler.load_state_dict(state["scaler"])
        progress = state["progress"]
        metrics = [EpochMetrics(**values) for values in progress["metrics"]]
        timings = [EpochTiming(**values) for values in progress["timings"]]
        self.progress = Progress(progress["epochs_done"], metrics, timings)
        self.steps_done = self.progress.epochs_done * self.steps_per_epoch
