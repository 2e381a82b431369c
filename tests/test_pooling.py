"""Pooling for validation is faster, and the same."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import max_pool2d
from torchvision.models import vgg11

from photofinish.models.pooling import HalvingMaxPool2d, quicken_pooling

OTHER_POOLS = (
    nn.MaxPool2d(3), nn.MaxPool2d(2, stride=1), nn.MaxPool2d(2, padding=1), nn.MaxPool2d(2, dilation=2),
    nn.MaxPool2d(2, ceil_mode=True), nn.MaxPool2d(2, return_indices=True), nn.MaxPool2d((2, 3)), nn.AvgPool2d(2),
)  # fmt: skip


def images(*shape: int) -> torch.Tensor:
    """Rounded, so that some neighbours are equal."""
    return (torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 3).round()


@pytest.mark.parametrize("side", [2, 7, 24])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_without_gradients_it_gives_the_bits_and_the_layout_of_pytorchs_pooling(
    side: int, layout: torch.memory_format, dtype: torch.dtype
) -> None:
    batch = images(5, 6, side, side + 1).to(dtype, memory_format=layout)
    with torch.inference_mode():
        pooled = HalvingMaxPool2d(2)(batch)
        assert torch.equal(pooled, max_pool2d(batch, 2))
    assert pooled.is_contiguous(memory_format=layout)


def test_a_value_that_is_no_number_is_not_lost() -> None:
    batch = images(1, 1, 4, 4)
    batch[0, 0, 3, 0] = torch.nan
    with torch.inference_mode():
        assert torch.isnan(HalvingMaxPool2d(2)(batch)).flatten().tolist() == [False, False, True, False]


def test_gradients_are_pytorchs_own() -> None:
    batch = images(5, 6, 7, 7).requires_grad_()
    towards = images(5, 6, 3, 3)
    ours, theirs = (
        torch.autograd.grad(pool(batch), batch, towards)[0] for pool in (HalvingMaxPool2d(2), nn.MaxPool2d(2))
    )
    assert torch.equal(ours, theirs)


def test_every_pool_that_halves_is_quickened_and_the_network_answers_as_before() -> None:
    network = vgg11(num_classes=3).eval()
    quick = copy.deepcopy(network)
    quicken_pooling(quick)
    assert sum(isinstance(module, HalvingMaxPool2d) for module in quick.modules()) == 5
    batch = torch.rand(2, 3, 32, 32)
    with torch.inference_mode():
        assert torch.equal(quick(batch), network(batch))


@pytest.mark.parametrize("pool", OTHER_POOLS, ids=repr)
def test_other_pools_stay_as_they_are(pool: nn.Module) -> None:
    kind = type(pool)
    quicken_pooling(pool)
    assert type(pool) is kind
