"""A packed split: a memory-mapped file of inputs and one of targets per part, and a manifest."""

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
    """Names of the classes, values or labels. A network returns one number for each."""
    shape: tuple[int, ...]
    """Shape of a sample; for images, channels, height, width."""
    dtype: Dtype = "uint8"
    """Networks get samples of other dtypes than uint8 unchanged."""
    counts: dict[PartName, int]
    mean: tuple[float, ...]
    """Mean of the training part per channel, on the scale from 0 to 1. Empty: no normalisation."""
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
            raise UserError(
                f"{path} can't be read: run `dvc repro --force split` ({error})"
            ) from error

    def images(self, part: PartName) -> npt.NDArray[Any]:
        """Return a part's inputs, (count, *shape), memory-mapped."""
        images: npt.NDArray[Any] = np.load(self._checked(part, "images"), mmap_mode="r")
        return images

    def labels(self, part: PartName) -> npt.NDArray[Any]:
        """Return a part's class numbers; for other tasks, float32 (count, numbers)."""
        labels: npt.NDArray[Any] = np.load(self._checked(part, "labels"))
        return labels

    def _checked(self, part: PartName, content: Literal["images", "labels"]) -> Path:
        path = self.folder / part_file(part, content)
        if not is_as_recorded(path, self.manifest.sha256.get(path.name)):
            raise UserError(f"{path} is missing or damaged: run `dvc repro --force split`")
        return path


def part_file(part: PartName, content: Literal["images", "labels", "rows"]) -> str:
    """Return the name of a part's file of inputs, targets, or row numbers in the raw data."""
    return f"{part}-{content}.npy"
