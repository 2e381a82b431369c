"""Max-pooling that halves images, for validation on the CPU: PyTorch's also notes where it found each maximum, which
only gradients need, and takes several times as long for it (docs/performance.md)."""

from __future__ import annotations

from typing import cast

import torch
from torch import nn


class HalvingMaxPool2d(nn.MaxPool2d):
    """To the bit what `nn.MaxPool2d(2)` gives, by the larger of two lines and then of two columns."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled() or images.device.type != "cpu":
            return cast("torch.Tensor", super().forward(images))
        height, width = (side // 2 * 2 for side in images.shape[-2:])
        whole = images[..., :height, :width]
        lines = torch.maximum(whole[..., 0::2, :], whole[..., 1::2, :])
        return torch.maximum(lines[..., 0::2], lines[..., 1::2])


def quicken_pooling(network: nn.Module) -> None:
    """In place: every module that halves images stays the object it was, of another class."""
    for module in network.modules():
        if type(module) is nn.MaxPool2d and _halves(module):
            module.__class__ = HalvingMaxPool2d


def _halves(pool: nn.MaxPool2d) -> bool:
    plain = not (pool.ceil_mode or pool.return_indices)
    return plain and (
        _pair(pool.kernel_size) == _pair(pool.stride) == (2, 2)
        and _pair(pool.padding) == (0, 0)
        and _pair(pool.dilation) == (1, 1)
    )


def _pair(value: int | tuple[int, ...]) -> tuple[int, ...]:
    return value if isinstance(value, tuple) else (value, value)
