"""The images of torchvision's data sets: arrays in memory, or files that are decoded when they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from photofinish.datasets.images import Int64Array, UInt8Array
from photofinish.datasets.pixels import Shape, common_shape, decode_all, prepared, shape_in_file
from photofinish.params.datasets import Dataset, DatasetPlan

ReadRows = Callable[[Int64Array], UInt8Array]


def is_in_memory(part: Any) -> bool:
    return hasattr(part, "data")


def images_in_memory(parts: list[Any], dataset: Dataset) -> tuple[Shape, ReadRows]:
    images = np.concatenate([_channels_first(np.asarray(part.data)) for part in parts])
    channels, height, width = images.shape[1:]
    shape = dataset.channels or channels, *(dataset.size or (height, width))
    if shape == (channels, height, width):
        return shape, lambda rows: images[rows]
    if shape[1:] == (height, width) and channels == 1:
        return shape, lambda rows: np.repeat(images[rows], shape[0], axis=1)
    return shape, lambda rows: np.stack([prepared(_to_pil(image), shape[1:], shape[0]) for image in images[rows]])


def labelled_files(part: Any) -> list[tuple[Path, int]]:
    """Each image's file and its label, in an order that doesn't depend on the file system.

    A class that lets a user load files is asked for its items with a loader that hands back the path.
    """
    if hasattr(part, "loader"):
        part.loader = Path
        files = [part[row] for row in range(len(part))]
    else:
        files = [(Path(path), label) for path, label in _FILES[type(part).__name__](part)]
    return sorted(files)


def images_in_files(paths: list[Path], plan: DatasetPlan) -> tuple[Shape, ReadRows]:
    """Of 3 channels unless the settings say otherwise, as torchvision has them all."""
    size, channels = plan.dataset.size, plan.dataset.channels or 3
    if size is None:
        with ThreadPoolExecutor() as pool:
            height, width = common_shape(plan.name, pool.map(shape_in_file, paths), size, channels)[1:]
    else:
        height, width = size
    return (channels, height, width), lambda rows: decode_all([paths[row] for row in rows], size, channels)


def _channels_first(images: UInt8Array) -> UInt8Array:
    """torchvision holds grey images without channels, CIFAR's with theirs last, the others' with theirs first."""
    if images.ndim == 3:
        return images[:, np.newaxis]
    return images if images.shape[1] == 3 else images.transpose(0, 3, 1, 2)


def _to_pil(image: UInt8Array) -> Image.Image:
    return Image.fromarray(image[0] if len(image) == 1 else np.ascontiguousarray(image.transpose(1, 2, 0)))


def _of_caltech101(part: Any) -> list[tuple[str, int]]:
    folder = Path(part.root) / "101_ObjectCategories"
    numbered = zip(part.index, part.y, strict=True)
    return [(str(folder / part.categories[label] / f"image_{number:04d}.jpg"), label) for number, label in numbered]


def _of_caltech256(part: Any) -> list[tuple[str, int]]:
    folder = Path(part.root) / "256_ObjectCategories"
    numbered = zip(part.index, part.y, strict=True)
    return [
        (str(folder / part.categories[label] / f"{label + 1:03d}_{number:04d}.jpg"), label)
        for number, label in numbered
    ]


_FILES: dict[str, Callable[[Any], Any]] = {
    "Caltech101": _of_caltech101,
    "Caltech256": _of_caltech256,
    "GTSRB": lambda part: part._samples,
    "OxfordIIITPet": lambda part: zip(part._images, part._labels, strict=True),
}
"""Of the classes that open files themselves: how each finds an image's file."""
