"""Signals of varying length, padded for each batch."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

Sample = tuple[torch.Tensor, torch.Tensor]


class Waves(Dataset[tuple[torch.Tensor, int]]):
    """Sine waves in noise. Their class is how fast they swing."""

    classes = ("slow", "medium", "fast")

    def __init__(self, count: int = 600) -> None:
        draw = torch.Generator().manual_seed(0)
        self.lengths = torch.randint(40, 120, (count,), generator=draw)
        self.noise = torch.randn(count, 120, generator=draw) / 2

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        """Return a signal of (length, 1), and its class."""
        speed, length = row % 3, int(self.lengths[row])
        wave = torch.sin(torch.arange(length) * (0.2 + 0.3 * speed))
        return (wave + self.noise[row, :length])[:, None], speed


def pad(samples: list[Sample]) -> Sample:
    """Fill all signals of a batch with zeros, to the longest one's length."""
    signals, targets = zip(*samples, strict=True)
    return pad_sequence(list(signals), batch_first=True), torch.stack(targets)


class Net(nn.Module):
    """Convolutions along the signal, and the largest value of each channel."""

    def __init__(self, classes: int, width: int = 16) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(1, width, 9, padding=4), nn.ReLU(), nn.Conv1d(width, width, 9, padding=4)
        )
        self.last = nn.Linear(width, classes)

    def forward(self, signals: torch.Tensor) -> torch.Tensor:
        """Return logits of each class."""
        logits: torch.Tensor = self.last(self.layers(signals.transpose(1, 2)).amax(dim=2))
        return logits
