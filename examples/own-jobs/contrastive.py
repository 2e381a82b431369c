"""Contrastive training (SimCLR): two views of an image are near, views of others far."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import cross_entropy, normalize

Batch = tuple[torch.Tensor, torch.Tensor]


class Encoder(nn.Module):
    """Represents an image of 8 x 8 by a vector of length 1."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 16)
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return a vector for each image."""
        return normalize(self.layers(images), dim=1)


def step(network: Encoder, batch: Batch, temperature: float = 0.2) -> torch.Tensor:
    """Return how badly the other view of each image is found among all images."""
    images, _ = batch
    one, other = (network(images + 0.1 * torch.randn(images.shape).to(images)) for _ in range(2))
    likeness = one @ other.t() / temperature
    return cross_entropy(likeness, torch.arange(len(images), device=images.device))
