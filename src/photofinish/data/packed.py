"""A packed split: a memory-mapped file of inputs and one of targets per part, and a manifest."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from photofinish.config.base import Record
from photofinish.data import MANIFEST, Dtype, PartName, Task


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
    """Folder that `split` wrote."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = Manifest.model_validate_json((folder / MANIFEST).read_bytes())

    def images(self, part: PartName) -> npt.NDArray[Any]:
        """Return a part's inputs, (count, *shape), memory-mapped."""
        images: npt.NDArray[Any] = np.load(self.folder / part_file(part, "images"), mmap_mode="r")
        return images

    def labels(self, part: PartName) -> npt.NDArray[Any]:
        """Return a part's class numbers; for other tasks, float32 (count, numbers)."""
        labels: npt.NDArray[Any] = np.load(self.folder / part_file(part, "labels"))
        return labels


def part_file(part: PartName, content: Literal["images", "labels", "rows"]) -> str:
    """Return the name of a part's file of inputs, targets, or row numbers in the raw data."""
    return f"{part}-{content}.npy"
