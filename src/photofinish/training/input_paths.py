"""Batches of images that all lie on the device: no work of the host a step but to say which come next."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch

from photofinish.training.batches import WHOLE, Batch, Batches, BatchPlan, Part, Share
from photofinish.training.loader import LoaderBatches
from photofinish.training.randomness import Draws, no_change, with_border

if TYPE_CHECKING:
    from photofinish.params.experiment import Augmentation, Experiment


class ResidentBatches:
    """The whole part lies on the device, normalised once; a batch is one gather."""

    def __init__(self, plan: BatchPlan, part: Part, device: torch.device) -> None:
        self.image_count, self.batch_size = plan.image_count, plan.batch_size
        self._plan, self._device = plan, device
        # Normalised on the CPU, so that every device starts from the same bits.
        self._images = part.normalise(torch.from_numpy(np.array(part.images))).to(device)
        self._labels = torch.from_numpy(np.array(part.labels)).to(device)

    def shuffled(self, epoch: int) -> Iterator[Batch]:
        for rows in self._plan.own(self._plan.order(epoch).to(self._device)):
            yield self._images.index_select(0, rows), self._labels.index_select(0, rows)

    def unplaced(self, epoch: int) -> Iterator[Batch]:
        return self.shuffled(epoch)

    def placed(self, batch: Batch) -> Batch:
        return batch  # which never lay anywhere else

    def in_order(self) -> Iterator[Batch]:
        yield from zip(self._plan.own(self._images), self._plan.own(self._labels), strict=True)


class AugmentedResidentBatches:
    """The images lie on the device with black borders. A batch is two gathers: of the crops' lines, then columns.

    Whole lines are copied fast, so this takes half the time of gathering pixel by pixel.
    """

    def __init__(self, plan: BatchPlan, part: Part, device: torch.device, padding: int) -> None:
        self.image_count, self.batch_size = plan.image_count, plan.batch_size
        self._plan, self._device, self._padding = plan, device, padding
        bordered = part.normalise(torch.from_numpy(with_border(part.images, padding)))
        self._lines = bordered.flatten(0, 2).to(device)
        self._labels = torch.from_numpy(np.array(part.labels)).to(device)
        self._shape = channels, height, width = part.images.shape[1:]
        self._lines_a_channel = height + 2 * padding
        lines = torch.arange(channels)[:, None] * self._lines_a_channel + torch.arange(height)
        self._crop_lines = lines.flatten().to(device)
        columns = torch.arange(width)
        self._crop_columns = torch.stack([columns, columns.flip(0)]).to(device)
        """as they are, and mirrored"""

    def shuffled(self, epoch: int) -> Iterator[Batch]:
        draws = self._plan.draws(epoch) or no_change(self.image_count, self._padding)
        return self._gather(self._plan.order(epoch), draws)

    def unplaced(self, epoch: int) -> Iterator[Batch]:
        return self.shuffled(epoch)

    def placed(self, batch: Batch) -> Batch:
        return batch

    def in_order(self) -> Iterator[Batch]:
        return self._gather(torch.arange(self.image_count), no_change(self.image_count, self._padding))

    def _gather(self, order: torch.Tensor, draws: Draws) -> Iterator[Batch]:
        top, left, mirrored = (torch.from_numpy(drawn)[order] for drawn in (draws.top, draws.left, draws.mirrored))
        first_lines = order * self._shape[0] * self._lines_a_channel + top
        crops = torch.stack([order, first_lines, left, mirrored], dim=1).to(self._device)  # one copy an epoch
        for own in self._plan.own(crops):
            rows, first_line, first_column, mirror = own.unbind(1)
            lines = self._lines.index_select(0, (first_line[:, None] + self._crop_lines).flatten())
            columns = first_column[:, None] + self._crop_columns.index_select(0, mirror)
            count, lines_an_image = len(own), len(self._crop_lines)
            cropped = lines.view(count, lines_an_image, self._lines.shape[1]).gather(
                2, columns[:, None].expand(-1, lines_an_image, -1)
            )
            yield cropped.view(count, *self._shape), self._labels.index_select(0, rows)


_VALIDATION_BYTES = 4 << 20
"""Of images as float32. Without gradients there is room for more than in training, and fewer calls cost less."""


def make_batches(experiment: Experiment, part: Part, device: torch.device, share: Share = WHOLE) -> Batches:
    """The batches of one part by the input path that the experiment names; only training images are augmented."""
    plan = _plan(experiment, part, share)
    if experiment.input.name == "loader":
        return LoaderBatches(plan, part, device, experiment.input)
    if plan.augmentation:
        return AugmentedResidentBatches(plan, part, device, plan.augmentation.crop_padding)
    return ResidentBatches(plan, part, device)


def _plan(experiment: Experiment, part: Part, share: Share) -> BatchPlan:
    image_count = len(part.labels)
    if part.name != "train":
        return BatchPlan(image_count, _validation_batch_size(experiment, part), experiment.seed, share)
    return BatchPlan(image_count, experiment.batch_size, experiment.seed, share, _if_any(experiment.augmentation))


def _if_any(augmentation: Augmentation) -> Augmentation | None:
    return augmentation if augmentation.flip or augmentation.crop_padding else None


def _validation_batch_size(experiment: Experiment, part: Part) -> int:
    bytes_an_image = 4 * math.prod(part.images.shape[1:])
    return experiment.validation_batch_size or max(experiment.batch_size, _VALIDATION_BYTES // bytes_an_image)
