"""torchvision's data sets, downloaded, checked, unpacked and read by torchvision itself."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from torch.utils.data import ConcatDataset, Dataset, Subset

from photofinish.config.catalogue import DATASETS
from photofinish.config.datasets import (
    DatasetPlan,
    EmnistDataset,
    TorchvisionDataset,
    known_images,
)
from photofinish.data.images import UInt8Array, decoding_processes, to_pixels
from photofinish.data.samples import Source
from photofinish.errors import UserError
from photofinish.files import in_project, state_folder
from photofinish.locks import exclusive

_NO_CLASS = "N/A"
"""torchvision's name for EMNIST's class 0: its letters begin at 1."""


def open_torchvision(plan: DatasetPlan) -> Source:
    """Return the images of all parts, one after the other."""
    dataset = plan.dataset
    assert isinstance(dataset, TorchvisionDataset)
    parts = _parts(plan, dataset)
    if dataset.source == "SUN397":
        parts = [_sorted_by_path(part) for part in parts]
    names = getattr(parts[0], "classes", None) or getattr(parts[0], "categories", None) or ()
    # Imagenette has several names for each class.
    classes = tuple(name if isinstance(name, str) else name[0] for name in names)
    first_label = 1 if classes[:1] == (_NO_CLASS,) else 0
    images = _Images(dataset, ConcatDataset(parts), first_label)
    rows = np.split(np.arange(len(images)), np.cumsum([len(part) for part in parts]))
    in_memory = hasattr(parts[0], "data")
    return Source(
        images,
        SimpleNamespace(classes=classes[first_label:]),
        dict(zip(DATASETS[dataset.source], rows, strict=False)),  # an undivided one has no parts
        workers=0 if in_memory else decoding_processes(len(images)),
    )


def _parts(plan: DatasetPlan, dataset: TorchvisionDataset) -> list[Any]:
    """Return torchvision's data set of each part, downloaded and unpacked if necessary."""
    from torchvision import datasets

    root = in_project(dataset.root) if dataset.root else state_folder() / "downloads"
    root.mkdir(parents=True, exist_ok=True)
    variant = {"split": dataset.variant} if isinstance(dataset, EmnistDataset) else {}
    make = getattr(datasets, dataset.source)
    lock = exclusive(
        state_folder() / "locks", f"download-{dataset.source}", patience_seconds=math.inf
    )
    with lock:
        try:
            return [
                make(root=str(root), download=True, **variant, **arguments)
                for arguments in DATASETS[dataset.source].values() or [{}]
            ]
        except (RuntimeError, OSError) as error:  # urllib's errors are OSErrors
            raise UserError(
                f"data set '{plan.name}': torchvision can't download {dataset.source} into {root}: "
                f"{error}. Without internet, let datasets.{plan.name}.root in params.yaml name a "
                f"folder that has its files"
            ) from error


def _sorted_by_path(part: Any) -> Any:
    """Sort images that torchvision lists in the file system's order, which machines differ in."""
    loader, part.loader = part.loader, Path
    paths = [part[row] for row in range(len(part))]
    part.loader = loader
    ordered: Any = Subset(part, sorted(range(len(part)), key=paths.__getitem__))
    ordered.classes = part.classes
    return ordered


class _Images(Dataset[tuple[UInt8Array, int]]):
    """torchvision's PIL images as arrays."""

    def __init__(self, dataset: TorchvisionDataset, images: Any, first_label: int) -> None:
        channels = known_images(dataset).channels
        assert channels is not None
        self._size, self._channels = dataset.size, channels
        self._images, self._first_label = images, first_label

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, row: int) -> tuple[UInt8Array, int]:
        image, label = self._images[row]
        return to_pixels(image, self._size, self._channels), int(label) - self._first_label
