"""The Caltech tutorial's network as a custom class."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import max_pool2d, relu


class Cnn(nn.Module):
    """Two convolutions and three linear layers for 32x32 pixels, initialized as the tutorial's."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 32, kernel_size=3)
        self.second = nn.Conv2d(32, 64, kernel_size=3)
        self.linears = nn.Sequential(
            nn.Linear(64 * 6 * 6, 256),
            nn.ReLU(),
            nn.Linear(256, 128),
            nn.ReLU(),
            nn.Linear(128, classes),
        )
        for convolution in (self.first, self.second):
            nn.init.xavier_normal_(convolution.weight)
            nn.init.zeros_(convolution.bias)
        for linear in self.linears[::2]:
            nn.init.normal_(linear.weight, std=0.01)
            nn.init.zeros_(linear.bias)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the scores of each image, one per class."""
        features = max_pool2d(relu(self.first(images)), 2)
        features = max_pool2d(relu(self.second(features)), 2)
        return self.linears(features.flatten(1))
