"""A residual network as a custom class. Keys beside `name` in params.yaml are its arguments."""

from __future__ import annotations

from itertools import pairwise

import torch
from blocks import Residual
from torch import nn


class Net(nn.Module):
    """Residual blocks, each twice as wide as the one before, then a score for each class."""

    def __init__(
        self, shape: tuple[int, int, int], classes: int, width: int = 16, depth: int = 2
    ) -> None:
        super().__init__()
        self.stem = nn.Conv2d(shape[0], width, kernel_size=3, padding=1)
        widths = [width << number for number in range(depth + 1)]
        self.blocks = nn.Sequential(*(Residual(*pair) for pair in pairwise(widths)))
        self.scores = nn.Linear(widths[-1], classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the scores of each image, one per class."""
        return self.scores(self.blocks(self.stem(images)).mean(dim=(2, 3)))
