"""What batches are: which images each one holds, in which order, and how an image becomes what a network takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt
import torch

from photofinish.training.randomness import Draws, batch_order, draw_epoch

if TYPE_CHECKING:
    from photofinish.data.images import PartName
    from photofinish.params.experiment import Augmentation


Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Share:
    """Which images of each batch one process takes when several train together: every `size`-th from `rank` on."""

    rank: int = 0
    size: int = 1


WHOLE = Share()


class Batches(Protocol):
    image_count: int
    batch_size: int

    def shuffled(self, epoch: int) -> Iterator[Batch]:
        """The batches of one training epoch, on the device."""

    def unplaced(self, epoch: int) -> Iterator[Batch]:
        """The same, each short of what is left of its way to the device: `placed` goes that way."""

    def placed(self, batch: Batch) -> Batch: ...

    def in_order(self) -> Iterator[Batch]:
        """The same images once each, as they are and in their stored order, for evaluation."""


def steps_per_epoch(batches: Batches) -> int:
    return -(-batches.image_count // batches.batch_size)


@dataclass(frozen=True)
class Part:
    """One part of a packed split, and how its images become what a network takes."""

    name: PartName
    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]
    normalise: Normaliser


class Normaliser:
    """uint8 to float32, scaled to 0..1, less the training part's mean, over its standard deviation."""

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        self._mean = torch.tensor(mean).view(-1, 1, 1)
        self._std = torch.tensor(std).view(-1, 1, 1)

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        return images.float().div_(255).sub_(self._mean).div_(self._std)


@dataclass(frozen=True)
class BatchPlan:
    """Which images each batch holds and what happens to them: the same for every device and input path."""

    image_count: int
    batch_size: int
    seed: int
    share: Share = WHOLE
    augmentation: Augmentation | None = None

    def order(self, epoch: int) -> torch.Tensor:
        return batch_order(self.image_count, self.seed, epoch)

    def draws(self, epoch: int) -> Draws | None:
        return draw_epoch(self.augmentation, self.image_count, self.seed, epoch) if self.augmentation else None

    def own(self, ordered: torch.Tensor) -> Iterator[torch.Tensor]:
        """This process's share of each batch, of anything that has a row an image."""
        for batch in torch.split(ordered, self.batch_size):
            yield batch[self.share.rank :: self.share.size]
