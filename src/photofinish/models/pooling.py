"""Max-pooling that halves images, for where PyTorch's own is slow on the CPU (docs/performance.md).

It also notes where it found each maximum, which validation has no use for; and it takes channels, of float32, by the
eight, which the first convolution of a small network doesn't have. Of numbers, values and gradients are those that
PyTorch gives; where zeros of both signs are the largest, the other one may come out.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import nn
from torch.autograd.function import once_differentiable

_FEW_CHANNELS, _MANY_VALUES = 8, 1 << 18


class HalvingMaxPool2d(nn.MaxPool2d):
    """What `nn.MaxPool2d(2)` gives."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if not torch.is_grad_enabled():
            return _largest(images)
        if _is_slow(images):
            return cast("torch.Tensor", _Halving.apply(images))
        return cast("torch.Tensor", super().forward(images))


class _Windows(NamedTuple):
    largest: torch.Tensor
    is_right: torch.Tensor
    """of each line's pairs, whether the second is the larger one"""
    is_lower: torch.Tensor
    """whether the larger one of the window's second line is larger than that of its first"""


class _Halving(torch.autograd.Function):
    """PyTorch's gradient, with the places of the maxima found by comparing whole tensors."""

    @staticmethod
    def forward(ctx: Any, images: torch.Tensor) -> torch.Tensor:
        windows = _windows(images)
        ctx.save_for_backward(images, _places(windows, images.shape[-1]))
        return windows.largest

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, towards: torch.Tensor) -> torch.Tensor:
        images, places = ctx.saved_tensors
        two, none, one = [2, 2], [0, 0], [1, 1]
        gradient = torch.ops.aten.max_pool2d_with_indices_backward
        return cast("torch.Tensor", gradient(towards, images, two, two, none, one, False, places))


def _is_slow(images: torch.Tensor) -> bool:
    """Where PyTorch goes through the channels one by one, and there is enough to do."""
    return (
        images.shape[1] < _FEW_CHANNELS
        and images.numel() >= _MANY_VALUES
        and images.is_contiguous(memory_format=torch.channels_last)
    )


def _whole(images: torch.Tensor) -> torch.Tensor:
    """Without a last line or column that has no partner."""
    height, width = (side // 2 * 2 for side in images.shape[-2:])
    return images[..., :height, :width]


def _largest(images: torch.Tensor) -> torch.Tensor:
    """Lines first, which lie together in memory."""
    whole = _whole(images)
    lines = torch.maximum(whole[..., 0::2, :], whole[..., 1::2, :])
    return torch.maximum(lines[..., 0::2], lines[..., 1::2])


def _windows(images: torch.Tensor) -> _Windows:
    """Columns first: of equal values, PyTorch takes the first one in the order of reading."""
    whole = _whole(images)
    left, right = whole[..., 0::2], whole[..., 1::2]
    columns = torch.maximum(left, right)
    upper, lower = columns[..., 0::2, :], columns[..., 1::2, :]
    return _Windows(torch.maximum(upper, lower), right > left, lower > upper)


def _places(windows: _Windows, width: int) -> torch.Tensor:
    """Of the maxima in their images, as PyTorch counts: line by line. By logic, for `where` is far slower."""
    upper, lower = windows.is_right[..., 0::2, :], windows.is_right[..., 1::2, :]
    is_right = torch.bitwise_xor(upper, lower).bitwise_and_(windows.is_lower).bitwise_xor_(upper)
    _, channels, height, columns = windows.largest.shape
    first = torch.arange(height).view(-1, 1) * (2 * width) + torch.arange(columns) * 2
    first = first.to(torch.int32).expand(1, channels, -1, -1).contiguous(memory_format=torch.channels_last)
    return windows.is_lower.to(torch.int32).mul_(width).add_(is_right).add_(first).to(torch.int64)


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
