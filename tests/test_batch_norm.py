"""A batch of one sample is refused before training if batch-norm can't learn from it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from photofinish.errors import ConfigError
from photofinish.models.registry import check_batch_norm
from photofinish.training.torch_device import CPU
from photofinish.training.world import DataParallelWorld, DistributedWorld, World

SHAPE = (3, 8, 8)
ONE_DEVICE = World(CPU).normalised_images


def network(pooled_to: int = 1) -> nn.Module:
    """Return batch-norm after pooling to so many pixels a side, and dropout."""
    pool, norm = nn.AdaptiveAvgPool2d(pooled_to), nn.BatchNorm2d(3)
    return nn.Sequential(pool, norm, nn.Dropout(), nn.Flatten(), nn.Linear(3 * pooled_to**2, 2))


def on_gpus(count: int) -> Callable[[int], int]:
    devices = tuple(torch.device("cuda", index) for index in range(count))
    return DataParallelWorld(devices, devices[0]).normalised_images


@pytest.mark.parametrize(
    ("network", "images", "batch_size", "normalised", "is_refused"),
    [
        (network(), 65, 32, ONE_DEVICE, True),
        (network(), 65, 33, ONE_DEVICE, False),
        (network(), 67, 16, on_gpus(2), True),
        (network(), 67, 17, on_gpus(2), False),
        (network(), 1, 16, ONE_DEVICE, True),
        (network(pooled_to=2), 65, 32, ONE_DEVICE, False),  # several pixels are enough
        (nn.Flatten(), 65, 32, ONE_DEVICE, False),
    ],
)
def test_a_batch_size_that_leaves_one_image_is_refused_if_batch_norm_fails_on_it(
    network: nn.Module,
    images: int,
    batch_size: int,
    normalised: Callable[[int], int],
    is_refused: bool,
) -> None:
    with pytest.raises(ConfigError, match="batch_size") if is_refused else nullcontext():
        check_batch_norm(network, SHAPE, images, batch_size, normalised)


@pytest.mark.parametrize("gpus", [1, 2, 3, 8])
def test_data_parallel_normalises_over_the_chunks_that_torch_makes(gpus: int) -> None:
    for images in range(1, 40):
        fewest = min(map(len, torch.zeros(images).chunk(gpus)))
        assert on_gpus(gpus)(images) == fewest, images


def test_processes_that_train_together_normalise_over_the_whole_batch(tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    together = DistributedWorld(0, 2, CPU).normalised_images
    dist.destroy_process_group()
    check_batch_norm(network(), SHAPE, 3, 16, together)  # two processes, the last batch of three
