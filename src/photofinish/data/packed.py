"""A packed split: one file of images (or other items) a part, that can be memory-mapped, and a manifest of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from photofinish.data import MANIFEST, Dtype, PartName, Task
from photofinish.errors import UserError
from photofinish.files import is_as_recorded
from photofinish.params.base import Record


class Manifest(Record):
    """What a packed split holds."""

    task: Task = "classes"
    class_names: tuple[str, ...]
    """of the classes, or of the values or labels that each item has: what a network gives one number each for"""
    shape: tuple[int, ...]
    """of an image: channels, height, width"""
    dtype: Dtype = "uint8"
    """of another one they are no images, but items that a network takes as they are packed"""
    counts: dict[PartName, int]
    mean: tuple[float, ...]
    """of the training part, a channel each, on the scale from 0 to 1; none where items are not normalised"""
    std: tuple[float, ...]
    sha256: dict[str, str]


class PackedSplit:
    """Reads a folder that `split` wrote; each file is checked against its sha256 the first time it is used."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = folder / MANIFEST
        try:
            self.manifest = Manifest.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise UserError(f"{path} can't be read: run `dvc repro --force split` ({error})") from error

    def images(self, part: PartName) -> npt.NDArray[Any]:
        """A part's images as (count, channels, height, width), memory-mapped."""
        return np.load(self._checked(part_file(part, "images")), mmap_mode="r")  # type: ignore[no-any-return]

    def labels(self, part: PartName) -> npt.NDArray[Any]:
        """The number of the class of each image of a part; of another task, float32 (count, numbers)."""
        return np.load(self._checked(part_file(part, "labels")))  # type: ignore[no-any-return]

    def _checked(self, name: str) -> Path:
        path = self.folder / name
        if not is_as_recorded(path, self.manifest.sha256.get(name)):
            raise UserError(f"{path} is missing or damaged: run `dvc repro --force split`")
        return path


def part_file(part: PartName, content: Literal["images", "labels", "rows"]) -> str:
    """The name of a part's file: of its images, of their labels, or of which rows of the raw data they are."""
    return f"{part}-{content}.npy"
