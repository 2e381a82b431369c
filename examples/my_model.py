"""A network of your own. `make new` made this file; docs/your-own.md says what may be changed, and what is checked."""

from __future__ import annotations

import torch
from torch import nn


class Net(nn.Module):
    """Its arguments are the keys beside `name` in params.yaml; `shape` and `classes` are given by the data set."""

    def __init__(self, shape: tuple[int, int, int], classes: int, width: int = 32) -> None:
        super().__init__()
        channels, height, width_in_pixels = shape
        self.features = nn.Sequential(nn.Conv2d(channels, width, kernel_size=3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.scores = nn.Linear(width * (height // 2) * (width_in_pixels // 2), classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """A score for each class: cross-entropy takes them as they are, without a softmax."""
        return self.scores(self.features(images).flatten(1))
