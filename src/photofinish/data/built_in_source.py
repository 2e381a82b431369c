"""Built-in sources: scikit-learn's digits, images made from a seed, and torchvision's data sets."""

from __future__ import annotations

import math
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import ConcatDataset

from photofinish.config.catalogue import DATASETS, GREY
from photofinish.config.datasets import DatasetPlan, SyntheticDataset, TorchvisionDataset
from photofinish.data.images import Int64Array, UInt8Array, decoding_processes, to_pixels
from photofinish.data.sources import Source
from photofinish.errors import UserError
from photofinish.files import in_project, state_folder
from photofinish.stage.locks import exclusive

_BRIGHTEST = 16
_KNOTS = 4
"""Number of random shades per side, which a pattern interpolates."""
_BYTES_A_WORD = 8
_PATTERN, _NOISE = 0, 1
"""Numbers that separate the random streams by purpose."""


def open_digits(_plan: DatasetPlan) -> Source:
    """Return scikit-learn's digits, with values scaled from 0 to 16 to a byte."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.round(digits.images * (255 / _BRIGHTEST)).astype(np.uint8)[:, np.newaxis]
    return Source(list(zip(images, digits.target, strict=True)))


def open_synthetic(plan: DatasetPlan) -> Source:
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


def open_torchvision(plan: DatasetPlan) -> Source:
    """Return the images of all parts, one after the other."""
    dataset = plan.dataset
    assert isinstance(dataset, TorchvisionDataset)
    channels = dataset.channels or (1 if dataset.source in GREY else 3)
    transform = partial(to_pixels, size=dataset.size, channels=channels)
    parts = _parts(plan, dataset, transform)
    names = getattr(parts[0], "classes", None) or getattr(parts[0], "categories", None) or ()
    # Imagenette has several names for each class.
    classes = tuple(name if isinstance(name, str) else name[0] for name in names)
    in_memory = hasattr(parts[0], "data")
    images: Any = ConcatDataset(parts)
    rows = np.split(np.arange(len(images)), np.cumsum([len(part) for part in parts]))
    return Source(
        images,
        SimpleNamespace(classes=classes),
        dict(zip(DATASETS[dataset.source], rows, strict=False)),  # undivided data sets have none
        workers=0 if in_memory else decoding_processes(len(images)),
    )


def _parts(plan: DatasetPlan, dataset: TorchvisionDataset, transform: Any) -> list[Any]:
    """Return torchvision's data set of each part, downloaded and unpacked if necessary."""
    from torchvision import datasets

    source = dataset.source
    root = in_project(dataset.root) if dataset.root else state_folder() / "downloads"
    root.mkdir(parents=True, exist_ok=True)
    make = partial(getattr(datasets, source), root=str(root), download=True, transform=transform)
    locks = state_folder() / "locks"
    with exclusive(locks, f"download-{source}", patience_seconds=math.inf):
        try:
            return [make(**part) for part in DATASETS[source].values() or [{}]]
        except (RuntimeError, OSError) as error:  # urllib's errors are OSErrors
            raise UserError(
                f"data set '{plan.name}': torchvision can't download {source} into {root}: "
                f"{error}. Without internet, set datasets.{plan.name}.root in params.yaml to a "
                f"folder that has its files"
            ) from error
