"""A custom network, written by `photofinish new`. docs/your-own.md says what it may do."""

from __future__ import annotations

import torch
from torch import nn


class Net(nn.Module):
    """Keys beside `name` in params.yaml are arguments. `shape` and `classes` are the data set's."""

    def __init__(self, shape: tuple[int, int, int], classes: int, width: int = 32) -> None:
        super().__init__()
        channels, height, width_in_pixels = shape
        convolution = nn.Conv2d(channels, width, kernel_size=3, padding=1)
        self.features = nn.Sequential(convolution, nn.ReLU(), nn.MaxPool2d(2))
        self.scores = nn.Linear(width * (height // 2) * (width_in_pixels // 2), classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return a score for each class, without a softmax: cross-entropy applies it."""
        return self.scores(self.features(images).flatten(1))
