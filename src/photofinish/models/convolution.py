"""Convolution as a matrix product, for where it has but one position left, on the CPU (docs/performance.md).

So do the last layers of a deep network whose images are small: most of a kernel then lies beyond the image, and PyTorch
multiplies what is in the padding, too. Sums are added up in another order: results may differ in their last digits.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import nn
from torch.nn.functional import linear


class LastPositionConv2d(nn.Conv2d):
    """What `nn.Conv2d` gives, for a convolution that `_is_plain`."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if not self._has_one_position(images):
            return super().forward(images)
        (lines, line_taps), (columns, column_taps) = (self._reach(axis, images.shape[2 + axis]) for axis in (0, 1))
        # Colours innermost, as they lie in memory: nothing is copied where the whole image, or one tap, is in reach.
        seen = images.permute(0, 2, 3, 1)[:, lines, columns]
        taps = self.weight.permute(0, 2, 3, 1)[:, line_taps, column_taps]
        answers = linear(seen.flatten(1), taps.flatten(1), self.bias)
        return answers.view(len(images), 1, 1, -1).permute(0, 3, 1, 2)

    def _has_one_position(self, images: torch.Tensor) -> bool:
        """And so many images that it pays: for a single one PyTorch is quicker."""
        if images.device.type != "cpu" or images.dim() != 4 or len(images) < 2:
            return False
        rooms = zip(images.shape[2:], self._paddings, self.kernel_size, self.stride, strict=True)
        return all(0 <= side + 2 * padding - kernel < stride for side, padding, kernel, stride in rooms)

    @property
    def _paddings(self) -> tuple[int, ...]:
        return cast("tuple[int, ...]", self.padding)

    def _reach(self, axis: int, side: int) -> tuple[slice, slice]:
        """The pixels that the kernel sees from its one position, and its taps that see them."""
        padding = self._paddings[axis]
        seen = min(self.kernel_size[axis] - padding, side)
        return slice(0, seen), slice(padding, padding + seen)


def quicken_convolutions(network: nn.Module) -> None:
    """In place: every module that can be a matrix product stays the object it was, of another class."""
    for module in network.modules():
        if type(module) is nn.Conv2d and _is_plain(module):
            module.__class__ = LastPositionConv2d


def _is_plain(conv: nn.Conv2d) -> bool:
    return (
        conv.groups == 1
        and conv.padding_mode == "zeros"
        and conv.dilation == (1, 1)
        and not isinstance(conv.padding, str)
        and all(padding < kernel for padding, kernel in zip(conv.padding, conv.kernel_size, strict=True))
    )
