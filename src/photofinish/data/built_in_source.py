"""Built-in sources: digits, generated images, torchvision's data sets, and images on this machine.

Images on this machine are listed in a CSV, or sorted into a folder per class.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from torch.utils.data import ConcatDataset

from photofinish.config.catalogue import DATASETS, GREY
from photofinish.config.datasets import (
    CsvDataset,
    DatasetPlan,
    FolderDataset,
    LocalDataset,
    LocalPath,
    SyntheticDataset,
    TorchvisionDataset,
)
from photofinish.data import PartName
from photofinish.data.images import (
    Int64Array,
    Size,
    UInt8Array,
    decode,
    decoding_processes,
    to_pixels,
)
from photofinish.data.local_files import read_csv
from photofinish.data.sources import Source
from photofinish.errors import ConfigError, UserError
from photofinish.files import in_project, state_folder
from photofinish.stage.locks import exclusive
from photofinish.wording import all_or_some, did_you_mean, shortened

_BRIGHTEST = 16
_KNOTS = 4
"""Number of random shades per side, which a pattern interpolates."""
_BYTES_A_WORD = 8
_PATTERN, _NOISE = 0, 1
"""Numbers that separate the random streams by purpose."""


_COLOURS, _MOST_FAULTS = 3, 10
_PARTS: dict[str, PartName] = {
    "train": "train", "validation": "validation", "val": "validation", "valid": "validation",
    "test": "test",
}  # fmt: skip


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


class _Row(NamedTuple):
    """Image listed by the data set."""

    where: str
    """File and line of a CSV, or the image's path."""
    path: Path
    label: str
    part: PartName | None
    """None if parts are drawn."""


@dataclass(frozen=True)
class ImageFiles:
    paths: Sequence[Path]
    labels: Sequence[int]
    classes: tuple[str, ...]
    size: Size | None
    channels: int

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, row: int) -> tuple[UInt8Array, int]:
        return decode(self.paths[row], self.size, self.channels), self.labels[row]


def open_csv(plan: DatasetPlan) -> Source:
    dataset = plan.dataset
    assert isinstance(dataset, CsvDataset)
    rows: list[_Row] = []
    faults: list[str] = []
    for place in dataset.paths():
        for row in _rows_of_csv(place, dataset):
            faults.append(row) if isinstance(row, str) else rows.append(row)
    _check(faults)
    labels = {row.label for row in rows if row.part in ("train", None)}
    return _source(dataset, rows, tuple(sorted(labels)))


def _check(faults: list[str]) -> None:
    if faults:
        raise ConfigError("\n".join(["faulty rows:", *faults[:_MOST_FAULTS]]))


def _rows_of_csv(place: LocalPath, dataset: CsvDataset) -> Iterator[_Row | str]:
    """Yield each row, or what is wrong with it."""
    columns = [dataset.path_column, dataset.label_column]
    if dataset.split_column is not None:
        columns.append(dataset.split_column)
    line = 0
    for line, cells in read_csv(place.path):
        for column in columns:
            if column not in cells:
                header = [name for name in cells if name]
                raise ConfigError(
                    f"{place.given} has no column '{column}';{did_you_mean(column, header)} "
                    f"it has {', '.join(header)}"
                )
        path, label, *split = [cells[column] or "" for column in columns]
        where = f"{place.given}:{line}"
        if not path or not label:
            yield f"{where}: its path or its label is empty"
        elif split and split[0].lower() not in _PARTS:
            yield f"{where}: '{split[0]}' is not a part; allowed: {', '.join(_PARTS)}"
        else:
            part = _PARTS[split[0].lower()] if split else place.part
            yield _Row(where, place.path.parent / path, label, part)
    if not line:
        raise ConfigError(f"{place.given} has no rows below the header")


def open_folder(plan: DatasetPlan) -> Source:
    """Return the images that torchvision's ImageFolder lists."""
    from torchvision.datasets import ImageFolder

    dataset = plan.dataset
    assert isinstance(dataset, FolderDataset)
    folders = [(place, ImageFolder(place.path)) for place in dataset.paths()]
    rows = []
    for place, folder in folders:
        for file, label in folder.samples:
            where = f"{place.given}/{Path(file).relative_to(place.path)}"
            rows.append(_Row(where, Path(file), folder.classes[label], place.part))
    return _source(dataset, rows, tuple(folders[0][1].classes))


def _source(dataset: LocalDataset, rows: list[_Row], classes: tuple[str, ...]) -> Source:
    number_of = {name: number for number, name in enumerate(classes)}
    faults = []
    for row in rows:
        if row.label not in number_of:
            hint = did_you_mean(row.label, classes)
            faults.append(
                f"{row.where}: '{shortened(row.label)}' is not a class of the training part;{hint} "
                f"there are: {all_or_some(classes)}"
            )
    _check(faults)
    images = ImageFiles(
        [row.path for row in rows],
        [number_of[row.label] for row in rows],
        classes,
        dataset.size,
        dataset.channels or _COLOURS,
    )
    part_of_rows = np.array([row.part or "" for row in rows])
    parts = dict.fromkeys(row.part for row in rows if row.part)
    return Source(
        images,
        images,
        {part: np.flatnonzero(part_of_rows == part) for part in parts},
        lambda row: rows[row].where,
        decoding_processes(len(rows)),
    )
