"""Where the images of a data set on this machine are: in one place, or in one place a part."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from photofinish.params.datasets import CsvDataset, FolderDataset
from photofinish.provenance import project_root

if TYPE_CHECKING:
    from photofinish.datasets.images import PartName  # imports NumPy, which `plan` does without

LocalDataset = CsvDataset | FolderDataset


@dataclass(frozen=True)
class Place:
    key: str
    """of params.yaml, below the data set: path, parts.train, ..."""
    part: PartName | None
    """None where the parts are drawn, or where a column tells them"""
    given: str
    """the path as the user wrote it"""
    path: Path


def places(dataset: LocalDataset) -> list[Place]:
    by_part: list[tuple[str, PartName | None, str | None]] = [("path", None, dataset.path)]
    if dataset.parts is not None:
        by_part += [
            ("parts.train", "train", dataset.parts.train),
            ("parts.validation", "validation", dataset.parts.validation),
            ("parts.test", "test", dataset.parts.test),
        ]
    return [Place(key, part, given, _located(given)) for key, part, given in by_part if given is not None]


def _located(given: str) -> Path:
    """Relative paths start at the project's folder, wherever the stage runs."""
    return project_root() / os.path.expanduser(given)  # noqa: PTH111  # pathlib's fails on an unknown user
