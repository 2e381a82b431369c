"""Images on this machine, listed in a CSV or sorted into a folder per class, as map-style data sets."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from photofinish.config.datasets import CsvDataset, DatasetPlan, FolderDataset, LocalDataset, Place, places
from photofinish.data import PartName
from photofinish.data.images import ImageFiles
from photofinish.data.local_files import class_folders, read_csv
from photofinish.data.reading import Source
from photofinish.errors import ConfigError
from photofinish.wording import did_you_mean, shortened

_COLOURS = 3
_PARTS: dict[str, PartName] = {
    "train": "train", "validation": "validation", "val": "validation", "valid": "validation", "test": "test",
}  # fmt: skip
_MOST_PROCESSES = 8
_IMAGES_PER_PROCESS = 100
_MOST_NAMES_SHOWN = 12


class _Row(NamedTuple):
    """Image as the data set lists it."""

    where: str
    """file and line of a CSV, or the image's path"""
    folder: Path
    path: str
    label: str
    part: PartName | None
    """None if the parts are drawn"""


def open_csv(plan: DatasetPlan) -> Source:
    """Return the images that CSVs list."""
    dataset = plan.dataset
    assert isinstance(dataset, CsvDataset)
    rows: list[_Row] = []
    faults: list[str] = []
    for place in places(dataset):
        _read_rows(place, dataset, rows, faults)
    classes = dataset.classes or tuple(sorted({row.label for row in rows if row.part in ("train", None)} - {""}))
    return _source(plan, rows, classes, faults)


def open_folder(plan: DatasetPlan) -> Source:
    """Return the images in a folder per class, as torchvision's ImageFolder finds them."""
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
            rows += [_Row(f"{place.given}/{path}", place.path, path, name, place.part) for path in paths]
    return _source(plan, rows, classes, faults)


def _read_rows(place: Place, dataset: CsvDataset, rows: list[_Row], faults: list[str]) -> None:
    columns = [dataset.path_column, dataset.label_column]
    if dataset.split_column is not None:
        columns.append(dataset.split_column)
    count = 0
    for line, cells in read_csv(place.path):
        count += 1
        for column in columns:
            if column not in cells:
                header = [name for name in cells if name]
                hint = did_you_mean(column, header)
                raise ConfigError(f"{place.given} has no column '{column}';{hint} it has {', '.join(header)}")
        path, label, *split = [cells[column] for column in columns]
        where = f"{place.given}:{line}"
        if None in cells or None in cells.values():
            faults.append(f"{where}: it has more or fewer cells than the header")
        elif not path or not label:
            faults.append(f"{where}: its path or its label is empty")
        elif split and split[0].lower() not in _PARTS:
            faults.append(f"{where}: '{split[0]}' is no part; allowed: {', '.join(_PARTS)}")
        else:
            part = _PARTS[split[0].lower()] if split else place.part
            rows.append(_Row(where, place.path.parent, path, label, part))
    if not count:
        raise ConfigError(f"{place.given} has no rows below the header")


def _source(plan: DatasetPlan, rows: list[_Row], classes: tuple[str, ...], faults: list[str]) -> Source:
    dataset = plan.dataset
    assert isinstance(dataset, LocalDataset)
    number_of = {name: number for number, name in enumerate(classes)}
    known = []
    for row in rows:
        if row.label in number_of:
            known.append(row)
            continue
        hint = did_you_mean(row.label, classes)
        shown = ", ".join(classes[:_MOST_NAMES_SHOWN]) + (", ..." if len(classes) > _MOST_NAMES_SHOWN else "")
        faults.append(
            f"{row.where}: '{shortened(row.label)}' is no class of the training part;{hint} there are: {shown}"
        )
    images = ImageFiles(
        [row.folder / row.path for row in known],
        [number_of[row.label] for row in known],
        classes,
        dataset.size,
        dataset.channels or _COLOURS,
        upright=True,
    )
    parts = np.array([row.part or "" for row in known])
    names = dict.fromkeys(row.part for row in known if row.part)
    return Source(
        images,
        images,
        {part: np.flatnonzero(parts == part) for part in names},
        lambda index: known[index].where,
        [row.path for row in known],
        faults,
        f"To resize all images, set datasets.{plan.name}.size in params.yaml.",
        processes_for(len(known)),
    )


def processes_for(images: int) -> int:
    """Return how many processes to decode so many image files in; 0 means this one."""
    return min(_MOST_PROCESSES, os.cpu_count() or 1, images // _IMAGES_PER_PROCESS)
