"""Batch-norm needs more than one value a channel; PyTorch only tells when such a batch comes, an epoch into the run."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import chain

import torch
from torch import nn

from photofinish.errors import MistakeError


def refuse_lone_images(
    network: nn.Module,
    shape: tuple[int, int, int],
    image_count: int,
    batch_size: int,
    normalised: Callable[[int], int] = int,
) -> None:
    """Refuse, before training, what leaves batch-norm a single image, if this network can't learn from one.

    `normalised` tells over how many images of a batch, at the least, batch-norm takes its statistics.
    """

    def leaves_one(size: int) -> bool:
        batches = {min(size, image_count), image_count % size} - {0}
        return any(normalised(images) < 2 for images in batches)

    if not leaves_one(batch_size) or not _fails_on_one(network, shape):
        return
    sizes = chain(range(batch_size + 1, image_count + 1), range(min(batch_size, image_count), 1, -1))
    fitting = next((size for size in sizes if not leaves_one(size)), None)
    if fitting is None:
        raise MistakeError(
            f"model has batch-norm, which can't learn from one image, and every batch_size leaves one: "
            f"{image_count} training images are too few for the devices that share a batch"
        )
    raise MistakeError(
        f"batch_size {batch_size} in params.yaml leaves a single image to batch-norm ({image_count} training images, "
        f"shared among the devices), which can't learn from one: set another batch_size, {fitting} for instance"
    )


def _fails_on_one(network: nn.Module, shape: tuple[int, int, int]) -> bool:
    """Tried out on a copy: where the last batch-norm still sees several pixels, one image is enough."""
    if not any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in network.modules()):
        return False
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            copy.deepcopy(network).train()(torch.zeros(1, *shape))
        except ValueError as error:
            if "more than 1 value per channel" not in str(error):
                raise
            return True
    return False
