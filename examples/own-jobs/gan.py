"""A GAN: two networks, each with its own optimizer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.functional import softplus
from torch.optim import Adam, Optimizer

Batch = tuple[torch.Tensor, torch.Tensor]


class Gan(nn.Module):
    """A generator of digits of 8 x 8, and a discriminator."""

    def __init__(self, noise: int = 16, width: int = 64) -> None:
        super().__init__()
        self.noise = noise
        self.generator = nn.Sequential(nn.Linear(noise, width), nn.ReLU(), nn.Linear(width, 64))
        self.discriminator = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 1))

    def losses(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the discriminator's loss and the generator's."""
        noise = torch.randn(len(images), self.noise).to(images)  # on the CPU: each device draws it
        made = self.generator(noise)
        real = softplus(-self.discriminator(images.flatten(1))).mean()
        found = softplus(self.discriminator(made.detach())).mean()
        return real + found, softplus(-self.discriminator(made)).mean()


def optimizers(network: Gan, lr: float = 0.001) -> list[Optimizer]:
    """Return one for each network."""
    return [Adam(network.discriminator.parameters(), lr), Adam(network.generator.parameters(), lr)]


def step(network: Gan, batch: Batch, optimizers: Sequence[Optimizer]) -> torch.Tensor:
    """Train the discriminator, then the generator. Return the generator's loss."""
    for number, optimizer in enumerate(optimizers):
        loss = network.losses(batch[0])[number]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss


def validation_step(network: Gan, batch: Batch) -> torch.Tensor:
    """Return how well the discriminator separates real images from made ones."""
    return network.losses(batch[0])[0]
