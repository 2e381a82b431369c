"""Where batches come from. Every path gives the same batches in the same order; only the cost differs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from photofinish.batches.batches import WHOLE, Batches, BatchPlan, Part, Share
from photofinish.batches.loader import LoaderBatches
from photofinish.batches.resident import AugmentedResidentBatches, ResidentBatches

if TYPE_CHECKING:
    from photofinish.params.training import Augmentation, Experiment

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
