"""Samples whose shapes differ, in one flat array."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


class Ragged:
    """Arrays of one dtype and number of dimensions. The flat array may be memory-mapped."""

    def __init__(self, values: npt.NDArray[Any], shapes: npt.NDArray[np.int64]) -> None:
        self.values, self.shapes = values, shapes
        self.dtype = values.dtype
        self._ends = shapes.prod(axis=1).cumsum()

    def __len__(self) -> int:
        return len(self.shapes)

    def __getitem__(self, row: int) -> npt.NDArray[Any]:
        shape, end = self.shapes[row], self._ends[row]
        return self.values[end - shape.prod() : end].reshape(shape)

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Return the shape as an array's, with None for sides that differ."""
        columns = self.shapes.T
        sides = (int(side[0]) if (side == side[0]).all() else None for side in columns)
        return (len(self), *sides)
