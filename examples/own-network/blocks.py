"""Blocks of the network in net.py. A change here trains it again."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import relu


class Residual(nn.Module):
    """Two convolutions beside a shortcut. The first halves the height and width."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, kernel_size=3, stride=2, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, kernel_size=3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, kernel_size=1, stride=2, bias=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Add the outputs of the convolutions and of the shortcut."""
        inner = relu(self.first_norm(self.first(images)))
        return relu(self.second_norm(self.second(inner)) + self.shortcut(images))
