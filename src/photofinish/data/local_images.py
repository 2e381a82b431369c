"""Images on this machine: listed in a CSV, or sorted into a folder per class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from photofinish.config.datasets import (
    CsvDataset,
    DatasetPlan,
    FolderDataset,
    LocalDataset,
    Place,
    places,
)
from photofinish.data import PartName
from photofinish.data.images import Size, UInt8Array, decode, decoding_processes
from photofinish.data.local_files import class_folders, read_csv
from photofinish.data.samples import Source
from photofinish.errors import ConfigError
from photofinish.wording import all_or_some, did_you_mean, shortened

_COLOURS = 3
_PARTS: dict[str, PartName] = {
    "train": "train", "validation": "validation", "val": "validation", "valid": "validation",
    "test": "test",
}  # fmt: skip


class _Row(NamedTuple):
    """Image as the data set lists it."""

    where: str
    """File and line of a CSV, or the image's path."""
    path: Path
    label: str
    part: PartName | None
    """None if the parts are drawn."""


@dataclass(frozen=True)
class ImageFiles:
    """Map-style data set of image files."""

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
    """Return the images that CSVs list."""
    dataset = plan.dataset
    assert isinstance(dataset, CsvDataset)
    rows: list[_Row] = []
    faults: list[str] = []
    for place in places(dataset):
        _read_rows(place, dataset, rows, faults)
    labels = {row.label for row in rows if row.part in ("train", None)}
    return _source(dataset, rows, dataset.classes or tuple(sorted(labels)), faults)


def _read_rows(place: Place, dataset: CsvDataset, rows: list[_Row], faults: list[str]) -> None:
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
            faults.append(f"{where}: its path or its label is empty")
        elif split and split[0].lower() not in _PARTS:
            faults.append(f"{where}: '{split[0]}' is no part; allowed: {', '.join(_PARTS)}")
        else:
            part = _PARTS[split[0].lower()] if split else place.part
            rows.append(_Row(where, place.path.parent / path, label, part))
    if not line:
        raise ConfigError(f"{place.given} has no rows below the header")


def open_folder(plan: DatasetPlan) -> Source:
    """Return the images in a folder per class, in the order of torchvision's ImageFolder."""
    dataset = plan.dataset
    assert isinstance(dataset, FolderDataset)
    rows: list[_Row] = []
    faults: list[str] = []
    classes: tuple[str, ...] = ()
    for place in places(dataset):
        folders = class_folders(place.path)
        if place.part in ("train", None):
            classes = tuple(folders)
        if not folders:
            faults.append(f"{place.given}: it must have a folder of images for each class")
        for name, paths in folders.items():
            if not paths:
                faults.append(f"{place.given}/{name}: there are no images in it")
            for path in paths:
                rows.append(_Row(f"{place.given}/{path}", place.path / path, name, place.part))
    return _source(dataset, rows, classes, faults)


def _source(
    dataset: LocalDataset, rows: list[_Row], classes: tuple[str, ...], faults: list[str]
) -> Source:
    number_of = {name: number for number, name in enumerate(classes)}
    known = []
    for row in rows:
        if row.label in number_of:
            known.append(row)
            continue
        hint = did_you_mean(row.label, classes)
        faults.append(
            f"{row.where}: '{shortened(row.label)}' is no class of the training part;{hint} "
            f"there are: {all_or_some(classes)}"
        )
    images = ImageFiles(
        [row.path for row in known],
        [number_of[row.label] for row in known],
        classes,
        dataset.size,
        dataset.channels or _COLOURS,
    )
    part_of_rows = np.array([row.part or "" for row in known])
    parts = dict.fromkeys(row.part for row in known if row.part)
    return Source(
        images,
        images,
        {part: np.flatnonzero(part_of_rows == part) for part in parts},
        lambda row: known[row].where,
        faults,
        decoding_processes(len(known)),
    )
