"""Sources of data: each opens as a map-style data set of (input, target) pairs."""

from __future__ import annotations

from bisect import bisect_right
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import ConcatDataset

from photofinish.config.datasets import (
    PART,
    CsvDataset,
    CustomDataset,
    DatasetPlan,
    DigitsDataset,
    FolderDataset,
    SyntheticDataset,
    TorchvisionDataset,
)
from photofinish.custom.imports import check_code_unchanged
from photofinish.custom.running import accepted_arguments, run_custom_code
from photofinish.data.images import Int64Array, UInt8Array
from photofinish.data.local_images import open_csv, open_folder
from photofinish.data.samples import Source, seed_generators
from photofinish.data.torchvision_source import open_torchvision
from photofinish.errors import ConfigError, UserError
from photofinish.files import write_json_atomically

_BRIGHTEST = 16
_KNOTS = 4
"""Random shades a side that a pattern is drawn through."""
_BYTES_A_WORD = 8
_PATTERN, _NOISE = 0, 1
"""Purposes of a stream of random numbers."""


def download(plan: DatasetPlan, folder: Path) -> None:
    """Download a data set of torchvision. For every source, record it in `folder`."""
    if isinstance(plan.dataset, TorchvisionDataset):
        open_torchvision(plan)
    folder.mkdir(parents=True, exist_ok=True)
    arguments = plan.dataset.arguments if isinstance(plan.dataset, CustomDataset) else {}
    record = {"source": plan.dataset.source, "arguments": arguments}
    write_json_atomically(folder / "source.json", record)


def open_source(plan: DatasetPlan) -> Source:
    """Return the map-style data set that params.yaml names."""
    match plan.dataset:
        case DigitsDataset():
            return _open_digits()
        case SyntheticDataset() as dataset:
            images = _Synthetic(dataset)
            return Source(images, images)
        case CsvDataset():
            return open_csv(plan)
        case FolderDataset():
            return open_folder(plan)
        case TorchvisionDataset():
            return open_torchvision(plan)
        case CustomDataset() as custom:
            return _open_custom(plan, custom)


def _open_digits() -> Source:
    """Return scikit-learn's digits, whose values from 0 to 16 are spread over a byte."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.round(digits.images * (255 / _BRIGHTEST)).astype(np.uint8)[:, np.newaxis]
    return Source(list(zip(images, digits.target, strict=True)))


class _Synthetic:
    """A smooth pattern per class, half hidden by noise.

    Each image follows from the seed and its row, by whole numbers only, so that it has the same
    bytes on every machine.
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


def _open_custom(plan: DatasetPlan, dataset: CustomDataset) -> Source:
    """Return a custom data set, built once, or once for each part if its code takes `part`."""
    check_code_unchanged(plan.custom_code)
    seed_generators(dataset.seed)
    build, names = dataset.reference.load(), ["train"]
    if dataset.makes_parts:
        sizes = {"validation": dataset.validation, "test": dataset.test}
        names += [part for part, size in sizes.items() if size is None]
    parts: dict[Any, Any] = {}
    for part in names:
        offered = {PART: part, "seed": dataset.seed}
        arguments = accepted_arguments(build, offered, dataset.arguments)
        with run_custom_code(f"data set {dataset.source} can't be built"):
            parts[part] = built = build(**arguments)
        if not (hasattr(built, "__getitem__") and hasattr(built, "__len__")):
            raise UserError(
                f"{dataset.source} gives a {type(built).__name__}: "
                f"it must give a map-style data set, with __len__ and __getitem__"
            )
        for key in ("classes", "target_names"):
            if getattr(built, key, None) != getattr(parts["train"], key, None):
                raise ConfigError(
                    f"data set '{plan.name}' ({dataset.source}): its {part} part has other "
                    f"`{key}` than its train part: number them alike in all parts"
                )
    workers, seed = dataset.workers, dataset.seed
    if len(parts) == 1:
        return Source(parts["train"], parts["train"], workers=workers, seed=seed)
    joined: Any = ConcatDataset(parts.values())
    starts = [0, *joined.cumulative_sizes[:-1]]
    rows = np.split(np.arange(len(joined)), starts[1:])

    def name_of(row: int) -> str:
        number = bisect_right(starts, row) - 1
        return f"{names[number]} item {row - starts[number]}"

    own_parts = dict(zip(parts, rows, strict=True))
    return Source(joined, parts["train"], own_parts, name_of, workers=workers, seed=seed)
