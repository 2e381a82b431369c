"""A packed split: memory-mapped files of inputs, files of targets per part, and a manifest.

A tuple or dict of inputs has a file for each. Samples whose shapes differ lie in one flat file,
with a file of their shapes.
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
"""One input or target of all samples."""


class Manifest(Record):
    """Description of a packed split."""

    task: TaskName = "classes"
    class_names: tuple[str, ...]
    """Names of the classes, values or labels. A network returns one number for each."""
    shape: Nested[Shape]
    """Shape of a sample; for images, channels, height, width."""
    dtype: Nested[Dtype] = "uint8"
    """Networks get samples of other dtypes than uint8 unchanged."""
    target_shape: Shape = ()
    """Shape of a target as it is packed: positions for a class at each of them."""
    ignored_class: int | None = None
    """Number in the targets of positions that is no class, such as -100."""
    target_parts: Nested[Dtype] | None = None
    """Dtypes of a tuple or dict of targets."""
    counts: dict[PartName, int]
    mean: tuple[float, ...]
    """Mean of the training part per channel, on the scale from 0 to 1. Empty: no normalisation."""
    std: tuple[float, ...]
    decode: Decode = "once"
    """With each_epoch, inputs are not packed: the loader reads the data set itself."""
    sha256: dict[str, str]


class PackedSplit:
    """Folder that `split` wrote."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = Manifest.model_validate_json((folder / MANIFEST).read_bytes())

    def images(self, part: PartName) -> Any:
        """Return a part's inputs, (count, *shape), memory-mapped: a nested Column."""
        names = leaf_names(self.manifest.dtype)
        columns = [self._column(part, "images", name, mmap_mode="r") for name in names]
        return as_nested(columns, self.manifest.dtype)

    def labels(self, part: PartName) -> Any:
        """Return a part's targets, a nested Column.

        They are class numbers; for other tasks, float32 (count, numbers), or what the items have.
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
    """Return the name of the file of samples' shapes, if these differ."""
    return part_file(part, content, leaf).replace(".npy", ".shapes.npy")
