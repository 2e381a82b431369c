"""Images made from the seed, of any shape: a smooth pattern a class, half hidden by noise of every image's own.

Each image follows from the seed and its row alone, whichever are made together, and from whole numbers only, so that
it has the same bytes on every machine. What is fetched is just the recipe.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from photofinish.data.images import Int64Array, LabelledImages, Shape, UInt8Array
from photofinish.files import write_text_atomically
from photofinish.params.datasets import DatasetPlan, SyntheticDataset

_RECIPE = "recipe.json"
_KNOTS = 4  # a pattern is drawn through so many random shades a side
_BYTES_A_WORD = 8
_PATTERN, _NOISE = 0, 1  # what a stream of random numbers is for


class Recipe(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    images: int
    shape: Shape
    classes: int
    seed: int


def fetch(plan: DatasetPlan, folder: Path) -> None:
    dataset = plan.dataset
    assert isinstance(dataset, SyntheticDataset)
    recipe = Recipe(images=dataset.images, shape=dataset.shape, classes=dataset.classes, seed=dataset.seed)
    write_text_atomically(folder / _RECIPE, recipe.model_dump_json(indent=2) + "\n")


def read(_plan: DatasetPlan, folder: Path) -> LabelledImages:
    recipe = Recipe.model_validate_json((folder / _RECIPE).read_bytes())
    labels = np.arange(recipe.images, dtype=np.int64) % recipe.classes
    names = tuple(str(number) for number in range(recipe.classes))
    return LabelledImages(recipe.shape, labels, names, lambda rows: _images(recipe, rows))


def _images(recipe: Recipe, rows: Int64Array) -> UInt8Array:
    classes, pattern_of = np.unique(rows % recipe.classes, return_inverse=True)
    patterns = np.stack([_pattern(recipe, int(number)) for number in classes]) >> 1
    images = np.empty((len(rows), *recipe.shape), dtype=np.uint8)
    for image, row, pattern in zip(images, rows, pattern_of, strict=True):
        noise = _random_bytes(recipe.seed, _NOISE, int(row), image.size).reshape(recipe.shape)
        np.add(noise >> 1, patterns[pattern], out=image)
    return images


def _pattern(recipe: Recipe, number: int) -> UInt8Array:
    """A few random shades, with straight lines between them."""
    channels, height, width = recipe.shape
    knots = _random_bytes(recipe.seed, _PATTERN, number, channels * _KNOTS * _KNOTS).astype(np.int64)
    down, across = _weights(height), _weights(width)
    drawn: Int64Array = down @ knots.reshape(channels, _KNOTS, _KNOTS) @ across.T
    shades: Int64Array = drawn // (down[0].sum() * across[0].sum())
    return shades.astype(np.uint8)


def _weights(side: int) -> Int64Array:
    """How much each knot counts for each pixel of a side, in whole numbers that have the same sum for each pixel."""
    steps = max(1, side - 1)
    positions = np.arange(side, dtype=np.int64)[:, np.newaxis] * (_KNOTS - 1)
    weights: Int64Array = np.maximum(0, steps - np.abs(positions - np.arange(_KNOTS) * steps))
    return weights


def _random_bytes(seed: int, purpose: int, number: int, count: int) -> UInt8Array:
    """The first of a stream that is the purpose's and the number's own; NumPy promises its raw words for good."""
    key: npt.NDArray[np.uint64] = np.array([2 * seed + purpose, number], dtype=np.uint64)
    words = np.random.Philox(key=key).random_raw(-(-count // _BYTES_A_WORD))
    return np.asarray(words, dtype="<u8").view(np.uint8)[:count]
