"""Source of images that are made from the seed."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from photofinish.config.datasets import DatasetPlan, SyntheticDataset
from photofinish.data.images import Int64Array, UInt8Array
from photofinish.data.samples import Source

_KNOTS = 4
"""Number of random shades per side, which a pattern interpolates."""
_BYTES_A_WORD = 8
_PATTERN, _NOISE = 0, 1
"""Numbers that separate the random streams by purpose."""


def open_synthetic(plan: DatasetPlan) -> Source:
    """Return the images that the plan's seed makes."""
    assert isinstance(plan.dataset, SyntheticDataset)
    images = _Synthetic(plan.dataset)
    return Source(images, images)


class _Synthetic:
    """Images with a smooth pattern per class, half hidden by noise.

    Only the seed and the row determine an image. It is computed in whole numbers, so that it has
    the same bytes on every machine.
    """

    def __init__(self, dataset: SyntheticDataset) -> None:
        self._dataset = dataset
        self.classes = tuple(map(str, range(dataset.classes)))
        self._pattern = cache(self._draw_pattern)

    def __len__(self) -> int:
        return self._dataset.images

    def __getitem__(self, row: int) -> tuple[UInt8Array, int]:
        shape, label = self._dataset.shape, row % self._dataset.classes
        noise = _random_bytes(self._dataset.seed, _NOISE, row, int(np.prod(shape))).reshape(shape)
        return (noise >> 1) + (self._pattern(label) >> 1), label

    def _draw_pattern(self, number: int) -> UInt8Array:
        """Interpolate linearly between a few random shades."""
        channels, height, width = self._dataset.shape
        count = channels * _KNOTS * _KNOTS
        knots = _random_bytes(self._dataset.seed, _PATTERN, number, count).astype(np.int64)
        down, across = _weights(height), _weights(width)
        drawn: Int64Array = down @ knots.reshape(channels, _KNOTS, _KNOTS) @ across.T
        shades: Int64Array = drawn // (down[0].sum() * across[0].sum())
        return shades.astype(np.uint8)


def _weights(side: int) -> Int64Array:
    """Return the weight of each knot for each pixel of a side: integers with one sum per pixel."""
    steps = max(1, side - 1)
    positions = np.arange(side, dtype=np.int64)[:, np.newaxis] * (_KNOTS - 1)
    weights: Int64Array = np.maximum(0, steps - np.abs(positions - np.arange(_KNOTS) * steps))
    return weights


def _random_bytes(seed: int, purpose: int, number: int, count: int) -> UInt8Array:
    """Return the first bytes of a stream. NumPy promises that its raw words never change."""
    key: npt.NDArray[np.uint64] = np.array([2 * seed + purpose, number], dtype=np.uint64)
    words = np.random.Philox(key=key).random_raw(-(-count // _BYTES_A_WORD))
    return np.asarray(words, dtype="<u8").view(np.uint8)[:count]
