"""Decoded images with their labels, as every source hands them to `split`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

UInt8Array = npt.NDArray[np.uint8]
Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class LabelledImages:
    images: UInt8Array
    """(count, channels, height, width)"""
    labels: Int64Array
    class_names: tuple[str, ...]
