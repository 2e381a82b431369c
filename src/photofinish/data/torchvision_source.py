"""torchvision's data sets: downloaded, checked, unpacked and read by torchvision itself."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from torch.utils.data import ConcatDataset

from photofinish.config.catalogue import DATASETS
from photofinish.config.datasets import DatasetPlan, EmnistDataset, TorchvisionDataset, known_images
from photofinish.data.images import ImageFiles, Size, UInt8Array, prepared
from photofinish.data.local_images import processes_for
from photofinish.data.reading import Source
from photofinish.errors import UserError
from photofinish.files import in_project, state_folder
from photofinish.locks import exclusive

_NO_CLASS = "N/A"
"""EMNIST's letters begin at 1; torchvision calls the class before them so"""


def open_torchvision(plan: DatasetPlan) -> Source:
    """Return the images of all parts together, in an order that doesn't depend on the file system."""
    dataset = plan.dataset
    assert isinstance(dataset, TorchvisionDataset)
    root = in_project(dataset.root) if dataset.root else state_folder() / "downloads"
    made = _parts(plan, dataset, root)
    channels = known_images(dataset).channels
    assert channels is not None
    listed = getattr(made[0], "classes", None) or getattr(made[0], "categories", None) or ()
    classes = tuple(name if isinstance(name, str) else name[0] for name in listed)  # Imagenette has several for each
    first_label = 1 if classes[:1] == (_NO_CLASS,) else 0
    classes = classes[first_label:]
    parts: list[Any] = []
    for part, arguments in zip(made, _arguments_of(dataset), strict=True):
        files = _sorted_files(part, arguments, root)
        if files is None:
            parts.append(_Images(part, first_label, dataset.size, channels))
        else:
            paths, labels = [path for path, _ in files], [label for _, label in files]
            parts.append(ImageFiles(paths, labels, classes, dataset.size, channels))
    images: Any = ConcatDataset(parts)
    rows = np.split(np.arange(len(images)), np.cumsum([len(part) for part in parts]))
    return Source(
        images,
        SimpleNamespace(classes=classes),
        dict(zip(DATASETS[dataset.source], rows, strict=False)),  # an undivided one has no parts
        advice=f"To resize all images, set datasets.{plan.name}.size in params.yaml.",
        workers=processes_for(len(images)) if isinstance(parts[0], ImageFiles) else 0,
    )


def _arguments_of(dataset: TorchvisionDataset) -> list[dict[str, Any]]:
    variant = {"split": dataset.variant} if isinstance(dataset, EmnistDataset) else {}
    return [{**variant, **arguments} for arguments in DATASETS[dataset.source].values()] or [variant]


def _parts(plan: DatasetPlan, dataset: TorchvisionDataset, root: Path) -> list[Any]:
    """Return torchvision's data set of each part, downloaded and unpacked in `root` if it isn't there."""
    from torchvision import datasets

    root.mkdir(parents=True, exist_ok=True)
    locks = state_folder() / "locks"
    with exclusive(locks, f"download-{dataset.source}", patience_seconds=math.inf):
        try:
            return [
                getattr(datasets, dataset.source)(root=str(root), download=True, **arguments)
                for arguments in _arguments_of(dataset)
            ]
        except (RuntimeError, OSError) as error:  # urllib's errors are OSErrors
            raise UserError(
                f"data set '{plan.name}': torchvision can't download {dataset.source} into {root}: {error}. "
                f"Without internet, let datasets.{plan.name}.root in params.yaml name a folder that has its files"
            ) from error


class _Images:
    """Map-style data set of the PIL images that torchvision gives, as arrays."""

    def __init__(self, part: Any, first_label: int, size: Size | None, channels: int) -> None:
        self._part, self._first_label, self._size, self._channels = part, first_label, size, channels

    def __len__(self) -> int:
        return len(self._part)

    def __getitem__(self, row: int) -> tuple[UInt8Array, int]:
        image, label = self._part[row]
        return prepared(image, self._size, self._channels), int(label) - self._first_label


def _sorted_files(part: Any, arguments: dict[str, Any], root: Path) -> list[tuple[Path, int]] | None:
    """Return each image's file and label, sorted; None if torchvision's class opens its images itself."""
    if hasattr(part, "loader"):
        part.loader = Path
        return sorted(part[row] for row in range(len(part)))
    if type(part).__name__ != "OxfordIIITPet":
        return None
    folder = root / "oxford-iiit-pet"
    listing = (folder / "annotations" / f"{arguments['split']}.txt").read_text(encoding="utf-8")
    rows = [line.split() for line in listing.splitlines()]
    return sorted((folder / "images" / f"{name}.jpg", int(number) - 1) for name, number, *_ in rows)
