"""Averaged weights (`ema`)."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn


class AveragedWeights:
    """Exponential moving average of a network's weights, starting with the initial weights.

    Buffers such as BatchNorm's statistics are copied, not averaged.
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        self._source = network
        self.network = copy.deepcopy(network)
        """Network with the averaged weights."""
        self._average = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
        self._pairs = [*self.network.parameters()], [*network.parameters()]

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the weights after a step."""
        self._average(*self._pairs, None)

    @torch.no_grad()
    def copy_buffers(self) -> None:
        """Copy the trained network's buffers, before the averaged network is evaluated."""
        pairs = zip(self.network.buffers(), self._source.buffers(), strict=True)
        for averaged, trained in pairs:
            averaged.copy_(trained)
