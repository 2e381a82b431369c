"""Labelled images, as every source hands them to `split`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

UInt8Array = npt.NDArray[np.uint8]
Int64Array = npt.NDArray[np.int64]
PartName = Literal["train", "validation", "test"]


@dataclass(frozen=True)
class LabelledImages:
    """Images are decoded when asked for, so that a data set may be larger than memory."""

    shape: tuple[int, int, int]
    """channels, height, width"""
    labels: Int64Array
    class_names: tuple[str, ...]
    read: Callable[[Int64Array], UInt8Array]
    """the images of the given rows: (count, channels, height, width)"""
    own_parts: Mapping[PartName, Int64Array] = field(default_factory=dict)
    """the rows of each part that the source itself has; where it has none, `split` divides all rows"""


def from_array(
    images: UInt8Array,
    labels: Int64Array,
    class_names: tuple[str, ...],
    own_parts: Mapping[PartName, Int64Array] | None = None,
) -> LabelledImages:
    """Of images that lie in memory, or in a memory-mapped file."""
    _, channels, height, width = images.shape
    return LabelledImages((channels, height, width), labels, class_names, lambda rows: images[rows], own_parts or {})
