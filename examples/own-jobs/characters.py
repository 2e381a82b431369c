"""A language model: the next character at each position of a text."""

from __future__ import annotations

import torch
from sklearn.datasets import load_iris
from torch import nn
from torch.utils.data import Dataset

LENGTH = 24
PARTS = {"train": (0.0, 0.8), "validation": (0.8, 0.9), "test": (0.9, 1.0)}
"""Where each part begins and ends. Pieces that overlap are all in one part."""


class Characters(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Pieces of a text, and the same pieces one character later."""

    def __init__(self, part: str) -> None:
        text = load_iris().DESCR  # scikit-learn's description of a data set
        self.classes = tuple(sorted(set(text)))
        numbers = {letter: number for number, letter in enumerate(self.classes)}
        begin, end = (int(share * len(text)) for share in PARTS[part])
        self.numbers = torch.tensor([numbers[letter] for letter in text[begin:end]])

    def __len__(self) -> int:
        return len(self.numbers) - LENGTH

    def __getitem__(self, start: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return numbers of characters, and of their successors."""
        piece = self.numbers[start : start + LENGTH + 1]
        return piece[:-1], piece[1:]


class Transformer(nn.Module):
    """Two layers of causal attention."""

    def __init__(self, classes: int, width: int = 32) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(classes, width), nn.Embedding(LENGTH, width)
        layer = nn.TransformerEncoderLayer(width, 2, 4 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.last = nn.Linear(width, classes)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH))

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        """Return logits of (batch, positions, classes)."""
        places = torch.arange(LENGTH, device=letters.device)
        values = self.layers(self.letters(letters) + self.places(places), self.mask)
        logits: torch.Tensor = self.last(values)
        return logits
