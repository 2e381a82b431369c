"""Adaptive average-pooling as PyTorch's plain layers do it, for the images that a network is built for.

PyTorch has no deterministic backward pass of nn.AdaptiveAvgPool2d on CUDA, at any size, even where it changes nothing:
AlexNet and VGG could not be trained there with the same result each time. Pooling by fixed windows (nn.AvgPool2d) and
repeating pixels (nn.Upsample) have one. Every device gets the same layers. To one pixel, PyTorch itself takes a mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn


class _Windows(NamedTuple):
    """Along one side of an image: each pixel so many times, then means of windows."""

    times: int
    kernel: int
    stride: int
    padding: int

    @property
    def pools(self) -> bool:
        """Whether a window holds more than a pixel."""
        return self.kernel > 1

    @property
    def effort(self) -> tuple[int, int]:
        """Layers, then pixels: on the CPU one layer gives the bits of adaptive pooling, two may round otherwise."""
        return self.pools + (self.times > 1), self.times


@contextmanager
def adaptive_pooling_replaced(network: nn.Module) -> Iterator[None]:
    """Around a pass over an image of the size it is for: what adapted to that size is fixed to it afterwards.

    Where no windows of one size do the same (5 pixels to 7), the layer stays; on CUDA it is then refused.
    """
    sizes: dict[str, tuple[torch.Size, torch.Size]] = {}
    hooks = [
        module.register_forward_hook(partial(_note_sizes, sizes, name))
        for name, module in network.named_modules()
        if isinstance(module, nn.AdaptiveAvgPool2d)
    ]
    yield
    for hook in hooks:
        hook.remove()
    for name, (size, wanted) in sizes.items():
        layer = None if wanted == (1, 1) else fixed_pooling(size, wanted)
        if layer is not None:
            parent, _, own_name = name.rpartition(".")
            setattr(network.get_submodule(parent), own_name, layer)


def _note_sizes(
    sizes: dict[str, tuple[torch.Size, torch.Size]], name: str, _module: nn.Module, inputs: Any, output: torch.Tensor
) -> None:
    sizes[name] = inputs[0].shape[2:], output.shape[2:]


def fixed_pooling(size: tuple[int, ...], wanted: tuple[int, ...]) -> nn.Module | None:
    """What pools images of this height and width to the wanted ones as nn.AdaptiveAvgPool2d does; None where plain
    layers can't."""
    down, across = (_windows(*sides) for sides in zip(size, wanted, strict=True))
    if down is None or across is None:
        return None
    layers: list[nn.Module] = []
    if (down.times, across.times) != (1, 1):
        layers.append(nn.Upsample(size=(size[0] * down.times, size[1] * across.times)))
    if down.pools or across.pools:
        kernel, stride, padding = zip(down[1:], across[1:], strict=True)
        layers.append(nn.AvgPool2d(kernel, stride, padding, count_include_pad=False))
    return layers[0] if len(layers) == 1 else nn.Sequential(*layers) if layers else nn.Identity()


def _windows(size: int, wanted: int) -> _Windows | None:
    """The simplest that give each output the same mean as adaptive pooling does."""
    adaptive = [_mean_of(range(place * size // wanted, -(-(place + 1) * size // wanted))) for place in range(wanted)]
    found = []
    for times in range(1, wanted + 1):
        stride = max(1, times * size // wanted)
        candidates = (
            _Windows(times, kernel, stride, padding)
            for kernel in range(1, 2 * stride + 1)
            for padding in (0, kernel // 2)
        )
        found += [windows for windows in candidates if _means(size, windows) == adaptive]
    return min(found, key=lambda windows: windows.effort, default=None)


def _means(size: int, windows: _Windows) -> list[dict[int, Fraction]]:
    """Of each output, the share of each pixel."""
    times, kernel, stride, padding = windows
    starts = range(-padding, times * size + padding - kernel + 1, stride)
    return [
        _mean_of([place // times for place in range(start, start + kernel) if 0 <= place < times * size])
        for start in starts
    ]


def _mean_of(pixels: range | list[int]) -> dict[int, Fraction]:
    shares: dict[int, Fraction] = {}
    for pixel in pixels:
        shares[pixel] = shares.get(pixel, Fraction(0)) + Fraction(1, len(pixels))
    return shares
