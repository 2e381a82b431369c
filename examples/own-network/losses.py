"""A loss of one's own: of a network's outputs and the targets of a batch, the mean over the batch."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import cross_entropy


class Focal(nn.Module):
    """Cross-entropy that counts less, the surer the network is: Lin et al., 2017 (https://arxiv.org/abs/1708.02002)."""

    def __init__(self, gamma: float = 2.0) -> None:
        super().__init__()
        self.gamma = gamma

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """One number for the batch."""
        each = cross_entropy(outputs, targets, reduction="none")
        return ((1 - torch.exp(-each)) ** self.gamma * each).mean()
