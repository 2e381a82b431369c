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
        answers = linear(*self._in_reach(images), self.bias)
        return answers.view(len(images), 1, 1, -1).permute(0, 3, 1, 2)

    def _has_one_position(self, images: torch.Tensor) -> bool:
        """And images to make it pay: for a single one, and a small kernel, PyTorch is quicker."""
        if images.dim() != 4 or len(images) < 2:
            return False
        (lines, columns), (tall, wide), (down, right) = images.shape[2:], self.kernel_size, self.stride
        above, beside = self._paddings
        return 0 <= lines + 2 * above - tall < down and 0 <= columns + 2 * beside - wide < right

    def _in_reach(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The pixels that a kernel sees from its one position, and its taps that see them; each in one line."""
        # Colours innermost, as they lie in memory: of a whole image, or of a single tap, nothing is copied.
        pixels, taps = images.permute(0, 2, 3, 1), self.weight.permute(0, 2, 3, 1)
        if self.kernel_size != (1, 1) or images.shape[2:] != (1, 1):
            (above, lines), (beside, columns) = (
                (padding, min(size - padding, side))
                for size, padding, side in zip(self.kernel_size, self._paddings, images.shape[2:], strict=True)
            )
            pixels = pixels[:, :lines, :columns]
            taps = taps[:, above : above + lines, beside : beside + columns]
        return pixels.flatten(1), taps.flatten(1)

    @property
    def _paddings(self) -> tuple[int, int]:
        return cast("tuple[int, int]", self.padding)


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
