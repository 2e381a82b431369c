"""Where batches come from. Every path gives the same batches in the same order; only the cost differs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from photofinish.randomness import batch_order

Batch = tuple[torch.Tensor, torch.Tensor]


class Batches(Protocol):
    image_count: int
    batch_size: int

    def shuffled(self, epoch: int) -> Iterator[Batch]:
        """The batches of one training epoch, on the device."""

    def in_order(self) -> Iterator[Batch]:
        """The same images once each, in their stored order, for evaluation."""


def steps_per_epoch(batches: Batches) -> int:
    return -(-batches.image_count // batches.batch_size)


class Normaliser:
    """uint8 to float32, scaled to 0..1, less the training part's mean, over its standard deviation."""

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        self._mean = torch.tensor(mean).view(-1, 1, 1)
        self._std = torch.tensor(std).view(-1, 1, 1)

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        return images.float().div_(255).sub_(self._mean).div_(self._std)


class ResidentBatches:
    """The whole part lies on the device, normalised once; a batch is one gather."""

    def __init__(
        self,
        images: npt.NDArray[np.uint8],
        labels: npt.NDArray[np.int64],
        normalise: Normaliser,
        batch_size: int,
        seed: int,
        device: torch.device,
    ) -> None:
        self.image_count, self.batch_size = len(labels), batch_size
        self._seed, self._device = seed, device
        # Normalised on the CPU, so that every device starts from the same bits.
        self._images = normalise(torch.from_numpy(np.array(images))).to(device)
        self._labels = torch.from_numpy(np.array(labels)).to(device)

    def shuffled(self, epoch: int) -> Iterator[Batch]:
        order = batch_order(self.image_count, self._seed, epoch).to(self._device)
        for rows in torch.split(order, self.batch_size):
            yield self._images.index_select(0, rows), self._labels.index_select(0, rows)

    def in_order(self) -> Iterator[Batch]:
        return zip(*(torch.split(part, self.batch_size) for part in (self._images, self._labels)), strict=True)


class LoaderBatches:
    """A DataLoader, as the tutorials have it: images one by one from disk, in worker processes if asked."""

    def __init__(
        self,
        images: npt.NDArray[np.uint8],
        labels: npt.NDArray[np.int64],
        normalise: Normaliser,
        batch_size: int,
        seed: int,
        device: torch.device,
        *,
        workers: int,
        pin_memory: bool,
    ) -> None:
        self.image_count, self.batch_size = len(labels), batch_size
        self._seed, self._device = seed, device
        self._dataset = _PackedImages(images, labels, normalise)
        self._workers = workers
        self._pin_memory = pin_memory and device.type != "cpu"  # pinned pages serve copies to a device only

    def shuffled(self, epoch: int) -> Iterator[Batch]:
        return self._load(batch_order(self.image_count, self._seed, epoch).tolist())

    def in_order(self) -> Iterator[Batch]:
        return self._load(list(range(self.image_count)))

    def _load(self, rows: list[int]) -> Iterator[Batch]:
        loader = DataLoader(
            self._dataset,
            batch_size=self.batch_size,
            sampler=_Rows(rows),
            num_workers=self._workers,
            pin_memory=self._pin_memory,
            generator=torch.Generator(),  # its own, so that loading draws nothing from the network's stream
        )
        for images, labels in loader:
            yield (
                images.to(self._device, non_blocking=self._pin_memory),
                labels.to(self._device, non_blocking=self._pin_memory),
            )


class _PackedImages(Dataset[Batch]):
    def __init__(self, images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64], normalise: Normaliser) -> None:
        self._images, self._labels, self._normalise = images, torch.from_numpy(np.array(labels)), normalise

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, row: int) -> Batch:
        return self._normalise(torch.from_numpy(np.array(self._images[row]))), self._labels[row]


class _Rows(Sampler[int]):
    def __init__(self, rows: list[int]) -> None:
        self._rows = rows

    def __iter__(self) -> Iterator[int]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)
