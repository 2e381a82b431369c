"""A trained network as MLflow loads and serves it."""

from __future__ import annotations

import torch
from torch import nn


def as_served(
    network: nn.Module, mean: tuple[float, ...], std: tuple[float, ...], dtype: str, dimensions: int
) -> nn.Module:
    """Return the network with the normalisation of its training; images are bytes, or floats from 0 to 1.

    A class that is made here is pickled with its code, so that it loads where this package is not installed.
    """
    takes_images = dtype == "uint8"
    if not takes_images and not mean:
        return network

    class Served(nn.Module):
        mean: torch.Tensor
        std: torch.Tensor

        def __init__(self, network: nn.Module, mean: torch.Tensor, std: torch.Tensor) -> None:
            super().__init__()
            self.network = network
            self.register_buffer("mean", mean)
            self.register_buffer("std", std)

        def forward(self, items: torch.Tensor) -> torch.Tensor:
            """Normalise the items as in training, and apply the network."""
            if takes_images and items.dtype == torch.uint8:
                items = items.float() / 255
            elif takes_images and (not items.is_floating_point() or bool(((items < 0) | (items > 1)).any())):
                raise ValueError("images must be bytes (uint8), or floats from 0 to 1: divide pixels by 255")
            return self.network((items.float() - self.mean) / self.std)  # type: ignore[no-any-return]

    shape = (-1, *[1] * (dimensions - 1))
    return Served(network, torch.tensor(mean).view(shape), torch.tensor(std).view(shape))
