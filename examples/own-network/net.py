"""A residual network, as a class of one's own: its arguments are the keys beside `name` in params.yaml."""

from __future__ import annotations

from itertools import pairwise

import torch
from blocks import Residual
from torch import nn


class Net(nn.Module):
    """Residual blocks, each twice as wide as the one before and half as high, then one score a class."""

    def __init__(self, shape: tuple[int, int, int], classes: int, width: int = 16, depth: int = 2) -> None:
        super().__init__()
        self.stem = nn.Conv2d(shape[0], width, kernel_size=3, padding=1)
        widths = [width << number for number in range(depth + 1)]
        self.blocks = nn.Sequential(*(Residual(*pair) for pair in pairwise(widths)))
        self.scores = nn.Linear(widths[-1], classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The images' scores, a row each."""
        return self.scores(self.blocks(self.stem(images)).mean(dim=(2, 3)))
