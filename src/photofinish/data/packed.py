"""A packed split: memory-mapped files of inputs, files of targets per part, and a manifest.

A tuple or dict of inputs has a file for each input. Samples whose shapes differ are stored in one
flat file, with a second file for the shapes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from photofinish.config.base import Record
from photofinish.config.datasets import Decode
from photofinish.data import MANIFEST, Dtype, PartName, Shape, TaskName
from photofinish.data.ragged import Ragged
from photofinish.nested import Nested, as_nested, leaf_names

Array = npt.NDArray[Any]
Content = Literal["images", "labels", "rows"]
Column = Array | Ragged
"""Array of one input or target, for all samples."""


class Manifest(Record):
    task: TaskName = "classes"
    class_names: tuple[str, ...]
    """Names of the classes, values or labels. A network returns one number for each name."""
    shape: Nested[Shape]
    """Shape of a sample; for images, channels, height, width."""
    dtype: Nested[Dtype] = "uint8"
    """Dtype of a sample. All dtypes but uint8 reach networks unchanged."""
    target_shape: Shape = ()
    """Shape of a packed target. With a class at each position, the positions' shape."""
    ignored_class: int | None = None
    """Number that marks positions without a class, such as -100."""
    target_parts: Nested[Dtype] | None = None
    """Dtypes of a tuple or dict of targets."""
    counts: dict[PartName, int]
    mean: tuple[float, ...]
    """Training part's mean per channel, on a scale from 0 to 1. Empty without normalisation."""
    std: tuple[float, ...]
    decode: Decode = "once"
    """With `each_epoch`, inputs are not packed, and the loader reads the data set in each epoch."""
    sha256: dict[str, str]


class PackedSplit:
    """Folder that `split` wrote."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = Manifest.model_validate_json((folder / MANIFEST).read_bytes())

    def images(self, part: PartName) -> Any:
        """Return a part's memory-mapped inputs, (count, *shape), as a nested Column."""
        names = leaf_names(self.manifest.dtype)
        columns = [self._column(part, "images", name, mmap_mode="r") for name in names]
        return as_nested(columns, self.manifest.dtype)

    def labels(self, part: PartName) -> Any:
        """Return a part's targets, a nested Column.

        Targets are class numbers, or float32 (count, numbers) for values and labels. Custom targets
        stay as the data set returns them.
        """
        parts = self.manifest.target_parts or "int64"
        columns = [self._column(part, "labels", name) for name in leaf_names(parts)]
        return as_nested(columns, parts)

    def _column(
        self, part: PartName, content: Content, leaf: str = "", *, mmap_mode: Any = None
    ) -> Column:
        values: Array = np.load(self.folder / part_file(part, content, leaf), mmap_mode=mmap_mode)
        shapes = self.folder / shapes_file(part, content, leaf)
        return Ragged(values, np.load(shapes)) if shapes.is_file() else values


def part_file(part: PartName, content: Content, leaf: str = "") -> str:
    """Return the name of a part's file of inputs, targets, or row numbers in the raw data."""
    return "-".join(filter(None, (part, content, leaf))) + ".npy"


def shapes_file(part: PartName, content: Content, leaf: str = "") -> str:
    """Return the name of the file with the samples' shapes, if they differ."""
    return part_file(part, content, leaf).replace(".npy", ".shapes.npy")
