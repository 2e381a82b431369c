"""A network as MLflow loads and serves it: it takes images, and does to them itself what the training did."""

from __future__ import annotations

import torch
from torch import nn


def as_served(
    network: nn.Module, mean: tuple[float, ...], std: tuple[float, ...], dtype: str, dimensions: int
) -> nn.Module:
    """The network as it takes what its data set gives, which is packed as `dtype`."""
    if dtype == "uint8":
        return ImageClassifier(network, mean, std)
    return Normalised(network, mean, std, dimensions) if mean else network


class Normalised(nn.Module):
    """A network of items that are no images, and were normalised by given figures."""

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, network: nn.Module, mean: tuple[float, ...], std: tuple[float, ...], dimensions: int) -> None:
        super().__init__()
        self.network, ones = network, [1] * (dimensions - 1)
        self.register_buffer("mean", torch.tensor(mean).view(-1, *ones))
        self.register_buffer("std", torch.tensor(std).view(-1, *ones))

    def forward(self, items: torch.Tensor) -> torch.Tensor:
        """The network's answer to the items, normalised as its training items were."""
        return self.network((items - self.mean) / self.std)  # type: ignore[no-any-return]


class ImageClassifier(nn.Module):
    """One score a class for each image (channels, height, width): of bytes, or of floats from 0 to 1.

    It is pickled with its code, so that it loads where this package isn't installed: it uses torch alone.
    """

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, network: nn.Module, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The network's answer to the images, normalised as its training images were."""
        if images.dtype == torch.uint8:
            images = images.float() / 255
        elif not images.is_floating_point() or bool(((images < 0) | (images > 1)).any()):
            raise ValueError("images are to be of bytes (uint8), or of floats from 0 to 1: divide pixels by 255")
        return self.network((images.float() - self.mean) / self.std)  # type: ignore[no-any-return]
