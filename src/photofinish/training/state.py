"""State of a training: the objects that a step changes, and the epochs so far."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from photofinish.results import EpochMetrics, EpochTiming, TimedPart
from photofinish.training.learning_rates import LearningRates
from photofinish.training.torch_device import CPU

if TYPE_CHECKING:
    from photofinish.config.losses_and_metrics import EarlyStopping


class AveragedWeights:
    """Exponential moving average of a network's weights, starting with the initial weights.

    Buffers such as BatchNorm's statistics are copied, not averaged.
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        self._source = network
        # A process group can't be copied, so both networks have the same one.
        syncing = [module for module in network.modules() if isinstance(module, nn.SyncBatchNorm)]
        shared = {id(module.process_group): module.process_group for module in syncing}
        self.network = copy.deepcopy(network, shared)
        self._average = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
        self._pairs = [*self.network.parameters()], [*network.parameters()]

    @torch.no_grad()
    def update(self) -> None:
        self._average(*self._pairs, None)

    @torch.no_grad()
    def copy_buffers(self) -> None:
        """Copy the trained network's buffers, before the averaged network is evaluated."""
        pairs = zip(self.network.buffers(), self._source.buffers(), strict=True)
        for averaged, trained in pairs:
            averaged.copy_(trained)


class TrainedPart(NamedTuple):
    timed: TimedPart
    losses: list[torch.Tensor]
    """Loss of each step, or the losses of steps that were launched together."""
    ended_seconds: float
    """Reading of the clock at the part's end."""


class TrainState(NamedTuple):
    network: nn.Module
    """Network that a step calls, which is wrapped for several devices."""
    optimizers: list[torch.optim.Optimizer]
    """One optimizer, or several that a custom step steps itself."""
    schedule: LearningRates
    scaler: torch.amp.GradScaler
    memory_format: torch.memory_format
    average: AveragedWeights | None = None
    first_gradient: torch.Tensor | None = None
    """Tensor of 1 on the device, with which a captured backward pass starts."""

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self.optimizers[0]


@contextmanager
def put_back(state: TrainState) -> Iterator[None]:
    """Restore weights, buffers, optimizers and scaler in place, because graphs read them there."""
    tensors = [*state.network.parameters(), *state.network.buffers()]
    if state.average:
        tensors += state.average.network.parameters()
    settings = [(group, {**group}) for each in state.optimizers for group in each.param_groups]
    values = [(own, {**own}) for each in state.optimizers for own in each.state.values()]
    for _own, kept in values:
        tensors += [value for value in kept.values() if isinstance(value, torch.Tensor)]
    before = [tensor.detach().to(CPU, copy=True) for tensor in tensors]
    had_state = [set(optimizer.state) for optimizer in state.optimizers]
    scale = state.scaler.state_dict()
    try:
        yield
    finally:
        for optimizer, had in zip(state.optimizers, had_state, strict=True):
            optimizer.zero_grad()
            for parameter in optimizer.state.keys() - had:
                del optimizer.state[parameter]
        for changed, kept in [*settings, *values]:
            changed.clear()
            changed.update(kept)
        with torch.no_grad():
            for tensor, value in zip(tensors, before, strict=True):
                tensor.copy_(value)
        state.scaler.load_state_dict(scale)


@dataclass
class Progress:
    epochs_done: int = 0
    metrics: list[EpochMetrics] = field(default_factory=list)
    timings: list[EpochTiming] = field(default_factory=list)

    def add(self, metrics: EpochMetrics, timing: EpochTiming) -> None:
        self.metrics.append(metrics)
        self.timings.append(timing)
        self.epochs_done += 1

    def is_stopped(self, rule: EarlyStopping | None) -> bool:
        """Return True if the last improvement is `patience` epochs ago."""
        return rule is not None and self.epochs_without_better(rule) >= rule.patience

    def epochs_without_better(self, rule: EarlyStopping) -> int:
        best: float | None = None
        count = 0
        for metrics in self.metrics:
            losses = {
                "validation_loss": metrics.validation_loss,
                "validation_accuracy": metrics.validation_accuracy,
            }
            value = losses.get(rule.monitor, metrics.monitored)
            is_better = value is not None and rule.is_better(value, best)
            best = value if is_better else best
            count = 0 if is_better else count + 1
        return count
