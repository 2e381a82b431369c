"""A batch of one sample is refused before training if batch-norm can't learn from it."""

from __future__ import annotations

from collections.abc import Callable
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


def network(pooled_to: int = 1) -> nn.Module:
    """Batch-norm after pooling to so many pixels a side, and dropout."""
    return nn.Sequential(
        nn.AdaptiveAvgPool2d(pooled_to),
        nn.BatchNorm2d(3),
        nn.Dropout(),
        nn.Flatten(),
        nn.Linear(3 * pooled_to**2, 2),
    )


def on_gpus(count: int) -> Callable[[int], int]:
    devices = tuple(torch.device("cuda", index) for index in range(count))
    return DataParallelWorld(devices, devices[0]).normalised_images


ONE_DEVICE = World(CPU).normalised_images


@pytest.mark.parametrize(
    ("images", "batch_size", "normalised", "fitting"),
    [
        (65, 32, ONE_DEVICE, 33),
        (65, 1, ONE_DEVICE, 3),
        (33, 16, ONE_DEVICE, 17),
        (67, 16, on_gpus(2), 17),
        (90, 9, on_gpus(8), 10),  # two for each of five GPUs
        (5, 5, on_gpus(3), None),
        (1, 16, ONE_DEVICE, None),
        (3, 16, on_gpus(2), None),
    ],
)
def test_a_batch_size_that_leaves_one_image_is_refused_and_another_named_if_there_is_one(
    images: int, batch_size: int, normalised: Callable[[int], int], fitting: int | None
) -> None:
    message = (
        rf"batch_size {batch_size} in params\.yaml .* {fitting} for instance"
        if fitting
        else "too few"
    )
    with pytest.raises(ConfigError, match=message):
        check_batch_norm(network(), SHAPE, images, batch_size, normalised)
    if fitting:
        check_batch_norm(network(), SHAPE, images, fitting, normalised)


@pytest.mark.parametrize("batch_images", range(1, 40))
@pytest.mark.parametrize("gpus", [1, 2, 3, 8])
def test_data_parallel_normalises_over_the_chunks_that_torch_makes(
    gpus: int, batch_images: int
) -> None:
    fewest = min(map(len, torch.zeros(batch_images).chunk(gpus)))
    assert on_gpus(gpus)(batch_images) == fewest


def test_processes_that_train_together_normalise_over_the_whole_batch(tmp_path: Path) -> None:
    """However small their shares: three images on two processes are enough."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    together = DistributedWorld(0, 2, CPU).normalised_images
    dist.destroy_process_group()
    check_batch_norm(network(), SHAPE, 3, 16, together)


@pytest.mark.parametrize(
    "other", [network(pooled_to=2), nn.Flatten()], ids=["several pixels", "no batch-norm"]
)
def test_one_image_is_enough_for_a_network_that_can_learn_from_it(other: nn.Module) -> None:
    check_batch_norm(other, SHAPE, 65, 32)


def test_trying_it_out_leaves_the_network_and_the_random_stream_as_they_were() -> None:
    tried = network(pooled_to=2)
    before, stream = (
        [tensor.clone() for tensor in tried.state_dict().values()],
        torch.get_rng_state(),
    )
    check_batch_norm(tried, SHAPE, 65, 32)
    assert all(torch.equal(*pair) for pair in zip(before, tried.state_dict().values(), strict=True))
    assert torch.equal(torch.get_rng_state(), stream)
