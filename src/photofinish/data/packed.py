"""A packed split: one file of images (or other items) a part, that can be memory-mapped, and a manifest of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from photofinish.config.base import Record
from photofinish.data import MANIFEST, Dtype, PartName, Task
from photofinish.errors import UserError
from photofinish.files import is_as_recorded


class Manifest(Record):
    """Description of a packed split."""

    task: Task = "classes"
    class_names: tuple[str, ...]
    """names of the classes, values or labels: a network returns one number for each"""
    shape: tuple[int, ...]
    """shape of an item; of an image, channels, height, width"""
    dtype: Dtype = "uint8"
    """uint8 for images; a network gets items of another dtype unchanged"""
    counts: dict[PartName, int]
    mean: tuple[float, ...]
    """of the training part, one per channel on the scale from 0 to 1; empty if items are not normalised"""
    std: tuple[float, ...]
    sha256: dict[str, str]


class PackedSplit:
    """Folder that `split` wrote. Each file is checked against its sha256 when it is read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = folder / MANIFEST
        try:
            self.manifest = Manifest.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise UserError(f"{path} can't be read: run `dvc repro --force split` ({error})") from error

    def images(self, part: PartName) -> npt.NDArray[Any]:
        """Return a part's images as (count, channels, height, width), memory-mapped."""
        return np.load(self._checked(part_file(part, "images")), mmap_mode="r")  # type: ignore[no-any-return]

    def labels(self, part: PartName) -> npt.NDArray[Any]:
        """Return the class number of each item of a part; for other tasks, float32 (count, numbers)."""
        return np.load(self._checked(part_file(part, "labels")))  # type: ignore[no-any-return]

    def _checked(self, name: str) -> Path:
        path = self.folder / name
        if not is_as_recorded(path, self.manifest.sha256.get(name)):
            raise UserError(f"{path} is missing or damaged: run `dvc repro --force split`")
        return path


def part_file(part: PartName, content: Literal["images", "labels", "rows"]) -> str:
    """Return the name of a part's file of images, of labels, or of row numbers in the raw data."""
    return f"{part}-{content}.npy"
