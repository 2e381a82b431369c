"""Source of torchvision's data sets. torchvision downloads, checks and reads them."""

from __future__ import annotations

import math
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from torch.utils.data import ConcatDataset

from photofinish.config.catalogue import DATASETS, GREY
from photofinish.config.datasets import DatasetPlan, TorchvisionDataset
from photofinish.data.images import decoding_processes, to_pixels
from photofinish.data.samples import Source
from photofinish.errors import UserError
from photofinish.files import in_project, state_folder
from photofinish.stage.locks import exclusive


def open_torchvision(plan: DatasetPlan) -> Source:
    """Return the images of all parts, one after the other."""
    dataset = plan.dataset
    assert isinstance(dataset, TorchvisionDataset)
    channels = dataset.channels or (1 if dataset.source in GREY else 3)
    transform = partial(to_pixels, size=dataset.size, channels=channels)
    parts = _parts(plan, dataset, transform)
    names = getattr(parts[0], "classes", None) or getattr(parts[0], "categories", None) or ()
    # Imagenette has several names for each class.
    classes = tuple(name if isinstance(name, str) else name[0] for name in names)
    in_memory = hasattr(parts[0], "data")
    images: Any = ConcatDataset(parts)
    rows = np.split(np.arange(len(images)), np.cumsum([len(part) for part in parts]))
    return Source(
        images,
        SimpleNamespace(classes=classes),
        dict(zip(DATASETS[dataset.source], rows, strict=False)),  # undivided data sets have none
        workers=0 if in_memory else decoding_processes(len(images)),
    )


def _parts(plan: DatasetPlan, dataset: TorchvisionDataset, transform: Any) -> list[Any]:
    """Return torchvision's data set of each part, downloaded and unpacked if necessary."""
    from torchvision import datasets

    source = dataset.source
    root = in_project(dataset.root) if dataset.root else state_folder() / "downloads"
    root.mkdir(parents=True, exist_ok=True)
    make = partial(getattr(datasets, source), root=str(root), download=True, transform=transform)
    locks = state_folder() / "locks"
    with exclusive(locks, f"download-{source}", patience_seconds=math.inf):
        try:
            return [make(**part) for part in DATASETS[source].values() or [{}]]
        except (RuntimeError, OSError) as error:  # urllib's errors are OSErrors
            raise UserError(
                f"data set '{plan.name}': torchvision can't download {source} into {root}: "
                f"{error}. Without internet, set datasets.{plan.name}.root in params.yaml to a "
                f"folder that has its files"
            ) from error
