"""A custom loss: takes outputs and targets of a batch, returns the mean over the batch."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import cross_entropy


class Focal(nn.Module):
    """Cross-entropy with less weight on confident outputs (https://arxiv.org/abs/1708.02002)."""

    def __init__(self, gamma: float = 2.0) -> None:
        super().__init__()
        self.gamma = gamma

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean loss."""
        losses = cross_entropy(outputs, targets, reduction="none")
        return ((1 - torch.exp(-losses)) ** self.gamma * losses).mean()
