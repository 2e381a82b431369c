"""The Fashion-MNIST tutorial's LeNet as a custom class."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import max_pool2d, relu


class LeNet(nn.Module):
    """Two convolutions and three linear layers for images of 28x28 pixels."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 6, kernel_size=5)
        self.second = nn.Conv2d(6, 12, kernel_size=5)
        self.linears = nn.Sequential(
            nn.Linear(12 * 4 * 4, 120),
            nn.ReLU(),
            nn.Linear(120, 60),
            nn.ReLU(),
            nn.Linear(60, classes),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the scores of each image, one per class."""
        features = relu(max_pool2d(self.first(images), 2))
        features = relu(max_pool2d(self.second(features), 2))
        return self.linears(features.flatten(1))
