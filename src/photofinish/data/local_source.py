"""Images on this machine: listed in a CSV, or sorted into a folder per class."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from photofinish.config.datasets import (
    CsvDataset,
    DatasetPlan,
    FolderDataset,
    LocalDataset,
    LocalPath,
)
from photofinish.data import PartName
from photofinish.data.images import Size, UInt8Array, decode, decoding_processes
from photofinish.data.local_files import read_csv
from photofinish.data.sources import Source
from photofinish.errors import ConfigError
from photofinish.wording import all_or_some, did_you_mean, shortened

_COLOURS, _MOST_FAULTS = 3, 10
_PARTS: dict[str, PartName] = {
    "train": "train", "validation": "validation", "val": "validation", "valid": "validation",
    "test": "test",
}  # fmt: skip


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
