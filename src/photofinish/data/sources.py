"""Sources of data: each opens as a map-style data set, which is then read by one path."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import ConcatDataset

from photofinish.config.datasets import PART, DatasetPlan, OwnDataset, SyntheticDataset, TorchvisionDataset
from photofinish.custom_code import users_code, with_what_it_takes
from photofinish.data import PartName
from photofinish.data.images import Int64Array, LabelledImages, UInt8Array
from photofinish.data.local_images import open_csv, open_folder
from photofinish.data.reading import Source, read_items, seed_generators
from photofinish.data.torchvision_source import open_torchvision
from photofinish.errors import ConfigError, UserError
from photofinish.files import write_json_atomically
from photofinish.source_code import check_code_unchanged

_BRIGHTEST = 16
_KNOTS = 4
"""a pattern is drawn through so many random shades a side"""
_BYTES_A_WORD = 8
_PATTERN, _NOISE = 0, 1
"""purposes of a stream of random numbers"""


def download(plan: DatasetPlan, folder: Path) -> None:
    """Download a data set of torchvision; for every source, record it in `folder`."""
    if isinstance(plan.dataset, TorchvisionDataset):
        open_torchvision(plan)
    folder.mkdir(parents=True, exist_ok=True)
    arguments = plan.dataset.arguments if isinstance(plan.dataset, OwnDataset) else {}
    write_json_atomically(folder / "source.json", {"source": plan.dataset.source, "arguments": arguments})


def read_raw(plan: DatasetPlan, folder: Path) -> LabelledImages:
    """Read all items; they lie in an unnamed file in `folder` until they are packed."""
    if isinstance(plan.dataset, OwnDataset):
        source = open_custom(plan)
    elif isinstance(plan.dataset, TorchvisionDataset):
        source = open_torchvision(plan)
    else:
        source = _BUILT_IN[plan.dataset.source](plan)
    folder.mkdir(parents=True, exist_ok=True)
    return read_items(plan, source, folder)


def open_digits(_plan: DatasetPlan) -> Source:
    """Return scikit-learn's digits, whose values from 0 to 16 fill the range of a byte."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.round(digits.images * (255 / _BRIGHTEST)).astype(np.uint8)[:, np.newaxis]
    dataset = list(zip(images, digits.target, strict=True))
    return Source(dataset, None)


def open_synthetic(plan: DatasetPlan) -> Source:
    """Return images made from the seed."""
    assert isinstance(plan.dataset, SyntheticDataset)
    images = _Synthetic(plan.dataset)
    return Source(images, images)


class _Synthetic:
    """A smooth pattern per class, half hidden by noise.

    Each image follows from the seed and its row alone, and from whole numbers only, so that it has the same bytes on
    every machine.
    """

    def __init__(self, dataset: SyntheticDataset) -> None:
        self._dataset = dataset
        self.classes = tuple(map(str, range(dataset.classes)))
        self._pattern = cache(self._drawn_pattern)

    def __len__(self) -> int:
        return self._dataset.images

    def __getitem__(self, row: int) -> tuple[UInt8Array, int]:
        shape, label = self._dataset.shape, row % self._dataset.classes
        noise = _random_bytes(self._dataset.seed, _NOISE, row, int(np.prod(shape))).reshape(shape)
        return (noise >> 1) + (self._pattern(label) >> 1), label

    def _drawn_pattern(self, number: int) -> UInt8Array:
        """Draw a few random shades, with straight lines between them."""
        channels, height, width = self._dataset.shape
        knots = _random_bytes(self._dataset.seed, _PATTERN, number, channels * _KNOTS * _KNOTS).astype(np.int64)
        down, across = _weights(height), _weights(width)
        drawn: Int64Array = down @ knots.reshape(channels, _KNOTS, _KNOTS) @ across.T
        shades: Int64Array = drawn // (down[0].sum() * across[0].sum())
        return shades.astype(np.uint8)


def _weights(side: int) -> Int64Array:
    """Return the weight of each knot for each pixel of a side: whole numbers with the same sum for each pixel."""
    steps = max(1, side - 1)
    positions = np.arange(side, dtype=np.int64)[:, np.newaxis] * (_KNOTS - 1)
    weights: Int64Array = np.maximum(0, steps - np.abs(positions - np.arange(_KNOTS) * steps))
    return weights


def _random_bytes(seed: int, purpose: int, number: int, count: int) -> UInt8Array:
    """Return the first bytes of a stream; NumPy promises that its raw words never change."""
    key: npt.NDArray[np.uint64] = np.array([2 * seed + purpose, number], dtype=np.uint64)
    words = np.random.Philox(key=key).random_raw(-(-count // _BYTES_A_WORD))
    return np.asarray(words, dtype="<u8").view(np.uint8)[:count]


def open_custom(plan: DatasetPlan) -> Source:
    """Return a custom data set, made once, or once for each part if its code takes `part`."""
    dataset = plan.dataset
    assert isinstance(dataset, OwnDataset)
    check_code_unchanged(plan.custom_code)
    seed_generators(dataset.seed)
    build, names = dataset.reference.load(), ["train"]
    if dataset.makes_parts:
        sizes = {"validation": dataset.validation, "test": dataset.test}
        names += [part for part, size in sizes.items() if size is None]
    parts: dict[Any, Any] = {}
    for part in names:
        given = with_what_it_takes(build, {PART: part, "seed": dataset.seed}, dataset.arguments)
        what = f"data set {dataset.source}{f', {part}' if dataset.makes_parts else ''}"
        with users_code(f"{what} can't be made"):
            parts[part] = build(**given)
            if not (hasattr(parts[part], "__getitem__") and hasattr(parts[part], "__len__")):
                raise UserError(
                    f"{dataset.source} gives a {type(parts[part]).__name__}: it must give a map-style data set, with "
                    f"__len__ and __getitem__"
                )
            count = len(parts[part])
        if count == 0:
            raise ConfigError(f"{what} has no items: its length is 0")
    if len(parts) == 1:
        return Source(parts["train"], parts["train"], workers=dataset.workers, seed=dataset.seed)
    for key in ("classes", "target_names"):
        with users_code(f"data set {dataset.source}: its attribute `{key}` can't be read"):
            named = [getattr(part, key, None) for part in parts.values()]
        for part, other in zip(parts, named, strict=True):
            if other != named[0]:
                raise ConfigError(
                    f"data set '{plan.name}' ({dataset.source}): its {part} part has other `{key}` than its train "
                    f"part: number them alike in all parts"
                )
    joined: Any = ConcatDataset(parts.values())
    rows = np.split(np.arange(len(joined)), joined.cumulative_sizes[:-1])
    own_parts: dict[PartName, Int64Array] = dict(zip(parts, rows, strict=True))

    def name_of(index: int) -> str:
        part = next(part for part, rows in own_parts.items() if index <= rows[-1])
        return f"{part} item {index - own_parts[part][0]}"

    return Source(joined, parts["train"], own_parts, name_of, workers=dataset.workers, seed=dataset.seed)


_BUILT_IN: dict[str, Callable[[DatasetPlan], Source]] = {
    "digits": open_digits,
    "synthetic": open_synthetic,
    "csv": open_csv,
    "folder": open_folder,
}
