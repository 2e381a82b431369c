"""Pooling is faster on the CPU where PyTorch's is slow there, and the same."""

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
def test_without_gradients_it_gives_the_values_and_the_layout_of_pytorchs_pooling(
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


@pytest.mark.parametrize("shape", [(500, 6, 24, 24), (500, 3, 15, 14), (3000, 1, 9, 11), (500, 5, 14, 15)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_with_gradients_both_ways_give_pytorchs_values_and_layout_also_where_neighbours_are_equal(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    batch = images(*shape).to(dtype, memory_format=torch.channels_last).requires_grad_()
    ours, theirs = HalvingMaxPool2d(2)(batch), max_pool2d(batch, 2)
    assert is_ours(ours)
    assert not is_ours(theirs)
    towards = images(*ours.shape).to(dtype, memory_format=torch.channels_last)
    gradients = [torch.autograd.grad(pooled, batch, towards)[0] for pooled in (ours, theirs)]
    for one, other in ((ours, theirs), gradients):
        assert torch.equal(one, other)
        assert one.stride() == other.stride()


def is_ours(pooled: torch.Tensor) -> bool:
    assert pooled.grad_fn is not None
    return "Halving" in pooled.grad_fn.name()


def test_pytorchs_own_is_left_where_channels_are_many_or_values_few() -> None:
    def pooled(count: int, channels: int, layout: torch.memory_format) -> torch.Tensor:
        return HalvingMaxPool2d(2)(images(count, channels, 24, 24).to(memory_format=layout).requires_grad_())

    assert is_ours(pooled(500, 6, torch.channels_last))
    assert not is_ours(pooled(500, 8, torch.channels_last))
    assert not is_ours(pooled(50, 6, torch.channels_last))
    assert not is_ours(pooled(500, 6, torch.contiguous_format))


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
