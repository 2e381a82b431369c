"""torchvision's data sets: their files fetched and unpacked, their images as arrays or decoded when asked for."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from PIL import Image

from photofinish.data.archives import unpack
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
from photofinish.data.torchvision_files import TORCHVISION_FILES
from photofinish.errors import UserError
from photofinish.files import state_folder
from photofinish.params.datasets import Dataset, DatasetPlan, EmnistDataset
from photofinish.params.torchvision_names import DATASETS

_Arguments = Mapping[str, Any]
_ReadRows = Callable[[Int64Array], UInt8Array]
_ARCHIVES = (".gz", ".tar", ".tgz", ".zip")  # USPS's .bz2 is read as it is
_NO_CLASS = "N/A"  # EMNIST's letters begin at 1, and torchvision calls the class before them so


def fetch(plan: DatasetPlan, folder: Path) -> None:
    """Into `folder`, as torchvision keeps the files; archives go once they are unpacked."""
    files = TORCHVISION_FILES[plan.dataset.source]
    fetcher = Fetcher(plan.mirror, state_folder() / "downloads")
    place = folder / files.folder
    for name, md5 in files.md5_of.items():
        urls = [f"{address}{name}" for address in files.addresses]
        fetcher.fetch(urls, place / name, where=str(PurePosixPath(files.folder, name)), md5=md5)
        if name.endswith(_ARCHIVES):
            unpack(place / name, place)
            (place / name).unlink()
    if files.archives_within:
        for archive in sorted((place / files.archives_within).glob("*.gz")):
            if not isinstance(plan.dataset, EmnistDataset) or f"-{plan.dataset.variant}-" in archive.name:
                unpack(archive, place)
        shutil.rmtree(place / files.archives_within)
    try:
        for _, _ in _parts(plan, folder):
            pass
    except (RuntimeError, OSError) as error:
        raise UserError(f"the files aren't as torchvision expects them: {error}") from error


def read(plan: DatasetPlan, folder: Path) -> LabelledImages:
    """Of all parts together, in an order that doesn't depend on the file system."""
    try:
        parts = list(_parts(plan, folder))
    except RuntimeError as error:  # what torchvision raises where a file is missing, or another than it should be
        raise UserError(f"{folder} can't be read: {error}; run `dvc repro --force download`") from error
    first, _ = parts[0]
    if hasattr(first, "data"):
        labels = [np.asarray(_labels(part), dtype=np.int64) for part, _ in parts]
        shape, read_rows = _images_in_memory([part for part, _ in parts], plan.dataset)
    else:
        files = [_labelled_files(part, arguments) for part, arguments in parts]
        labels = [np.array([label for _, label in part], dtype=np.int64) for part in files]
        shape, read_rows = _images_in_files([path for part in files for path, _ in part], plan)
    together, class_names = _from_zero(np.concatenate(labels), first)
    counts = [len(part) for part in labels]
    ends = np.cumsum(counts)
    own = zip(DATASETS[plan.dataset.source], ends, counts, strict=False)  # an undivided one has no parts
    own_parts: dict[PartName, Int64Array] = {part: np.arange(end - count, end) for part, end, count in own}
    return LabelledImages(shape, together, class_names, read_rows, own_parts)


def _parts(plan: DatasetPlan, folder: Path) -> Iterator[tuple[Any, _Arguments]]:
    """torchvision's data set of each part, of all images where it isn't divided; and what asked for it."""
    from torchvision import datasets

    variant = {"split": plan.dataset.variant} if isinstance(plan.dataset, EmnistDataset) else {}
    of_source = getattr(datasets, plan.dataset.source)
    for arguments in list(DATASETS[plan.dataset.source].values()) or [{}]:
        yield of_source(root=str(folder), **variant, **arguments), arguments


def _labels(part: Any) -> Any:
    labels = part.targets if hasattr(part, "targets") else part.labels
    return labels[:, 0] if getattr(labels, "ndim", 1) == 2 else labels  # QMNIST has more to say of each image


def _from_zero(labels: Int64Array, part: Any) -> tuple[Int64Array, tuple[str, ...]]:
    listed = getattr(part, "classes", None) or getattr(part, "categories", None) or ()
    names = tuple(name if isinstance(name, str) else name[0] for name in listed)  # Imagenette has several for each
    if names and names[0] == _NO_CLASS:
        labels, names = labels - 1, names[1:]
    names = names or tuple(str(number) for number in range(int(labels.max()) + 1))
    if labels.min() < 0 or labels.max() >= len(names):
        raise UserError(f"labels go from {labels.min()} to {labels.max()}, but there are {len(names)} classes")
    return labels, names


def _images_in_memory(parts: list[Any], dataset: Dataset) -> tuple[Shape, _ReadRows]:
    images = np.concatenate([_channels_first(np.asarray(part.data)) for part in parts])
    channels, height, width = images.shape[1:]
    shape = dataset.channels or channels, *(dataset.size or (height, width))
    if shape == (channels, height, width):
        return shape, lambda rows: images[rows]
    if shape[1:] == (height, width) and channels == 1:
        return shape, lambda rows: np.repeat(images[rows], shape[0], axis=1)

    def as_pil(image: UInt8Array) -> Image.Image:
        return Image.fromarray(image[0] if channels == 1 else np.ascontiguousarray(image.transpose(1, 2, 0)))

    return shape, lambda rows: np.stack([prepared(as_pil(image), shape[1:], shape[0]) for image in images[rows]])


def _channels_first(images: UInt8Array) -> UInt8Array:
    """torchvision holds grey images without channels, CIFAR's with theirs last, the others' with theirs first."""
    if images.ndim == 3:
        return images[:, np.newaxis]
    return images if images.shape[1] == 3 else images.transpose(0, 3, 1, 2)


def _images_in_files(paths: list[Path], plan: DatasetPlan) -> tuple[Shape, _ReadRows]:
    """Of 3 channels unless the settings say otherwise, as torchvision has them all."""
    size, channels = plan.dataset.size, plan.dataset.channels or 3
    if size is None:
        with ThreadPoolExecutor() as pool:
            height, width = common_shape(plan.name, pool.map(shape_in_file, paths), size, channels)[1:]
    else:
        height, width = size
    return (channels, height, width), lambda rows: decode_all([paths[row] for row in rows], size, channels)


def _labelled_files(part: Any, arguments: _Arguments) -> list[tuple[Path, int]]:
    """Each image's file and its label, sorted; a class that takes a loader is given one that hands back the path."""
    if hasattr(part, "loader"):
        part.loader = Path
        return sorted(part[row] for row in range(len(part)))
    return sorted(_FILES[type(part).__name__](part, arguments))


def _of_caltech101(part: Any, _: _Arguments) -> Iterator[tuple[Path, int]]:
    for number, label in zip(part.index, part.y, strict=True):
        yield Path(part.root, "101_ObjectCategories", part.categories[label], f"image_{number:04d}.jpg"), label


def _of_caltech256(part: Any, _: _Arguments) -> Iterator[tuple[Path, int]]:
    for number, label in zip(part.index, part.y, strict=True):
        name = f"{label + 1:03d}_{number:04d}.jpg"
        yield Path(part.root, "256_ObjectCategories", part.categories[label], name), label


def _of_gtsrb(part: Any, arguments: _Arguments) -> Iterator[tuple[Path, int]]:
    folder = Path(part.root, "gtsrb")
    if arguments["split"] == "train":
        for path in folder.glob("GTSRB/Training/*/*.ppm"):
            yield path, int(path.parent.name)
    else:
        with (folder / "GT-final_test.csv").open(encoding="utf-8") as listing:
            for row in csv.DictReader(listing, delimiter=";", skipinitialspace=True):
                yield folder / "GTSRB/Final_Test/Images" / row["Filename"], int(row["ClassId"])


def _of_oxford_pets(part: Any, arguments: _Arguments) -> Iterator[tuple[Path, int]]:
    folder = Path(part.root, "oxford-iiit-pet")
    listing = folder / "annotations" / f"{arguments['split']}.txt"
    for line in listing.read_text(encoding="utf-8").splitlines():
        name, number, *_ = line.split()
        yield folder / "images" / f"{name}.jpg", int(number) - 1


_FILES: dict[str, Callable[[Any, _Arguments], Iterator[tuple[Path, int]]]] = {
    "Caltech101": _of_caltech101,
    "Caltech256": _of_caltech256,
    "GTSRB": _of_gtsrb,
    "OxfordIIITPet": _of_oxford_pets,
}
"""Of the classes that open files themselves, and don't say which: how each finds an image's file."""
