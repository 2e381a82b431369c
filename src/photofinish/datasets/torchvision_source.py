"""Classification data sets of torchvision: its own classes name the files, and read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from photofinish.datasets.fetching import Fetcher
from photofinish.datasets.images import Int64Array, LabelledImages, PartName
from photofinish.datasets.torchvision_downloads import own_downloads
from photofinish.datasets.torchvision_images import images_in_files, images_in_memory, is_in_memory, labelled_files
from photofinish.errors import UserError
from photofinish.params.datasets import DatasetPlan, EmnistDataset
from photofinish.provenance import state_folder

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
