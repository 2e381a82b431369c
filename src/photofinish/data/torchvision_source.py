"""The images of torchvision's data sets: arrays in memory, or files that are decoded when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from photofinish.data.fetching import Fetcher
from photofinish.data.images import (
    Int64Array,
    LabelledImages,
    PartName,
    Shape,
    UInt8Array,
    common_shape,
    decode_all,
    prepared,
    shape_in_file,
)
from photofinish.data.torchvision_downloads import own_downloads
from photofinish.errors import UserError
from photofinish.files import state_folder
from photofinish.params.datasets import Dataset, DatasetPlan, EmnistDataset

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


Arguments = Mapping[str, Any]
_NO_CLASS = "N/A"  # EMNIST's letters begin at 1, and torchvision calls the class before them so
_BY_FLAG: dict[PartName, Arguments] = {"train": {"train": True}, "test": {"train": False}}
_BY_NAME: dict[PartName, Arguments] = {"train": {"split": "train"}, "test": {"split": "test"}}
_ALL_BY_NAME: dict[PartName, Arguments] = {
    "train": {"split": "train"},
    "validation": {"split": "val"},
    "test": {"split": "test"},
}
PARTS: dict[str, dict[PartName, Arguments]] = {
    "CIFAR10": _BY_FLAG,
    "CIFAR100": _BY_FLAG,
    "Caltech101": {},
    "Caltech256": {},
    "Country211": {**_ALL_BY_NAME, "validation": {"split": "valid"}},
    "DTD": _ALL_BY_NAME,
    "EMNIST": _BY_FLAG,
    "EuroSAT": {},
    "FGVCAircraft": _ALL_BY_NAME,
    "FashionMNIST": _BY_FLAG,
    "Flowers102": _ALL_BY_NAME,
    "Food101": _BY_NAME,
    "GTSRB": _BY_NAME,
    "Imagenette": {"train": {"split": "train"}, "validation": {"split": "val"}},
    "KMNIST": _BY_FLAG,
    "MNIST": _BY_FLAG,
    "OxfordIIITPet": {"train": {"split": "trainval"}, "test": {"split": "test"}},
    "QMNIST": _BY_FLAG,
    "RenderedSST2": _ALL_BY_NAME,
    "SEMEION": {},
    "STL10": _BY_NAME,
    "SUN397": {},
    "SVHN": _BY_NAME,
    "USPS": _BY_FLAG,
}
"""What asks each class for its parts; the others come undivided."""


def fetch(plan: DatasetPlan, folder: Path) -> None:
    with own_downloads(folder, Fetcher(plan.mirror, state_folder() / "downloads")):
        for _ in _parts(plan, folder, download=True):
            pass
    if isinstance(plan.dataset, EmnistDataset):
        _keep_variant(plan.dataset.variant, folder)


def read(plan: DatasetPlan, folder: Path) -> LabelledImages:
    try:
        parts = list(_parts(plan, folder, download=False))
    except RuntimeError as error:  # what torchvision raises where a file is missing, or another than it should be
        raise UserError(f"{folder} can't be read: {error}; run `dvc repro --force download`") from error
    if is_in_memory(parts[0]):
        labels = [np.asarray(_labels(part), dtype=np.int64) for part in parts]
        shape, read_rows = images_in_memory(parts, plan.dataset)
    else:
        files = [labelled_files(part) for part in parts]
        labels = [np.array([label for _, label in part], dtype=np.int64) for part in files]
        shape, read_rows = images_in_files([path for part in files for path, _ in part], plan)
    together, class_names = _from_zero(np.concatenate(labels), _class_names(parts[0]))
    return LabelledImages(shape, together, class_names, read_rows, _rows(plan, [len(part) for part in labels]))


def _parts(plan: DatasetPlan, folder: Path, *, download: bool) -> Iterator[Any]:
    """torchvision's data set of each part; of all images, where it isn't divided."""
    from torchvision import datasets

    variant = {"split": plan.dataset.variant} if isinstance(plan.dataset, EmnistDataset) else {}
    of_source = getattr(datasets, plan.dataset.source)
    for arguments in list(PARTS[plan.dataset.source].values()) or [{}]:
        yield of_source(root=str(folder), download=download, **variant, **arguments)


def _rows(plan: DatasetPlan, counts: list[int]) -> dict[PartName, Int64Array]:
    ends = np.cumsum(counts)
    parts = zip(PARTS[plan.dataset.source], ends, counts, strict=False)  # an undivided one has no parts
    return {part: np.arange(end - count, end, dtype=np.int64) for part, end, count in parts}


def _labels(part: Any) -> Any:
    labels = part.targets if hasattr(part, "targets") else part.labels
    return labels[:, 0] if getattr(labels, "ndim", 1) == 2 else labels  # QMNIST has more to say of each image


def _class_names(part: Any) -> tuple[str, ...]:
    names = getattr(part, "classes", None) or getattr(part, "categories", None) or ()
    return tuple(name if isinstance(name, str) else name[0] for name in names)  # Imagenette has several for each


def _from_zero(labels: Int64Array, names: tuple[str, ...]) -> tuple[Int64Array, tuple[str, ...]]:
    if names and names[0] == _NO_CLASS:
        labels, names = labels - 1, names[1:]
    names = names or tuple(str(number) for number in range(int(labels.max()) + 1))
    if labels.min() < 0 or labels.max() >= len(names):
        raise UserError(f"labels go from {labels.min()} to {labels.max()}, but there are {len(names)} classes")
    return labels, names


def _keep_variant(variant: str, folder: Path) -> None:
    """EMNIST's one archive holds all its variants."""
    for path in (folder / "EMNIST" / "raw").iterdir():
        if path.is_file() and not path.name.startswith(f"emnist-{variant}-"):
            path.unlink()
