"""What is faster on the CPU than PyTorch's own, in the place of it."""

from __future__ import annotations

import torch
from torch import nn

from photofinish.models.convolution import quicken_convolutions
from photofinish.models.pooling import quicken_pooling


def quicken(network: nn.Module, device: torch.device) -> None:
    """In place. The trainer's network, and whatever is to compute as it does; what is saved knows nothing of it."""
    if device.type == "cpu":
        quicken_pooling(network)
        quicken_convolutions(network)
