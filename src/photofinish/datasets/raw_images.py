"""Raw data made of image files: copies under numbers, and a table of what each of them is."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict

from photofinish.datasets.images import LabelledImages, PartName
from photofinish.datasets.listed_images import ListedImage
from photofinish.datasets.pixels import Shape, decode_all
from photofinish.files import write_text_atomically
from photofinish.params.datasets import DatasetPlan

_TABLE = "images.json"
_FILES_A_FOLDER = 1000


class Table(BaseModel):
    """An item for every image, in the user's order."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    class_names: tuple[str, ...]
    shape: Shape
    """channels, height, width, once decoded"""
    files: tuple[str, ...]
    origins: tuple[str, ...]
    """the path that the user's data has for it"""
    labels: tuple[int, ...]
    parts: tuple[PartName, ...] | None
    """None where they are drawn later"""


def keep_copies(listed: Sequence[ListedImage], class_names: Sequence[str], shape: Shape, folder: Path) -> None:
    """Copy the images, never link them: what was fetched stays as it was, whatever happens to the user's files."""
    number_of = {name: number for number, name in enumerate(class_names)}
    files = []
    for row, image in enumerate(listed):
        suffix = Path(image.path).suffix.lower()
        file = f"images/{row // _FILES_A_FOLDER:04d}/{row % _FILES_A_FOLDER:03d}{suffix}"
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(image.real_path, folder / file)
        files.append(file)
    parts = tuple(image.part for image in listed if image.part)
    table = Table(
        class_names=tuple(class_names),
        shape=shape,
        files=tuple(files),
        origins=tuple(image.path for image in listed),
        labels=tuple(number_of[image.label] for image in listed),
        parts=parts or None,
    )
    write_text_atomically(folder / _TABLE, table.model_dump_json(indent=1) + "\n")


def read_copies(_plan: DatasetPlan, folder: Path) -> LabelledImages:
    table = Table.model_validate_json((folder / _TABLE).read_bytes())
    paths = [folder / file for file in table.files]
    channels, height, width = table.shape
    rows_of: dict[PartName, list[int]] = {}
    for row, part in enumerate(table.parts or ()):
        rows_of.setdefault(part, []).append(row)
    return LabelledImages(
        shape=table.shape,
        labels=np.array(table.labels, dtype=np.int64),
        class_names=table.class_names,
        read=lambda rows: decode_all([paths[row] for row in rows], (height, width), channels),
        own_parts={part: np.array(rows, dtype=np.int64) for part, rows in rows_of.items()},
    )
