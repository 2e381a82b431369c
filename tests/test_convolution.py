"""Convolution is faster on the CPU where one position is left, and the same but for rounding."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import linear
from torchvision.models import mobilenet_v3_small, resnet18

from photofinish.models import convolution
from photofinish.models.convolution import LastPositionConv2d, quicken_convolutions

ONE_POSITION: tuple[tuple[tuple[int, int], dict[str, Any]], ...] = (
    ((1, 1), {"kernel_size": 1}),
    ((1, 1), {"kernel_size": 3, "padding": 1}),
    ((2, 2), {"kernel_size": 3, "padding": 1, "stride": 2}),
    ((5, 5), {"kernel_size": 5}),
    ((2, 2), {"kernel_size": 1, "stride": 2}),  # sees one pixel of four
    ((7, 6), {"kernel_size": 5, "stride": 4}),  # does not see the last ones
    ((1, 3), {"kernel_size": (2, 5), "padding": (1, 1), "stride": (3, 2)}),  # only the lower taps see the line
    ((2, 1), {"kernel_size": (4, 3), "padding": (1, 1), "stride": (2, 1), "bias": False}),
    ((3, 4), {"kernel_size": 3, "padding": (1, 0), "stride": (4, 2)}),  # sees two lines of three
    ((4, 3), {"kernel_size": 3, "padding": (0, 1), "stride": (2, 4)}),
)
MORE_POSITIONS: tuple[tuple[tuple[int, int], dict[str, Any]], ...] = (
    ((2, 2), {"kernel_size": 3, "padding": 1}),
    ((1, 1), {"kernel_size": 2, "padding": 1}),
    ((5, 6), {"kernel_size": 5}),
    ((3, 3), {"kernel_size": 1, "stride": 2}),
)


class OwnConvolution(nn.Conv2d):
    """Which may do what it likes."""


OTHER_CONVOLUTIONS = (
    nn.Conv2d(4, 4, 3, padding=1, groups=4), nn.Conv2d(4, 4, 3, padding=2, dilation=2),
    nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"), nn.Conv2d(4, 4, 3, padding="same"),
    nn.Conv2d(4, 4, 2, padding=2), nn.Conv1d(4, 4, 3), nn.ConvTranspose2d(4, 4, 3),
    OwnConvolution(4, 4, 3),
)  # fmt: skip


def both(shape: tuple[int, ...], conv: dict[str, Any], images: int = 3) -> list[tuple[torch.Tensor, ...]]:
    """Ours and PyTorch's: answers, and gradients of images, weights and bias; in numbers long enough to compare."""
    torch.manual_seed(0)
    theirs = nn.Conv2d(4, 6, **conv, dtype=torch.float64).to(memory_format=torch.channels_last)
    ours = copy.deepcopy(theirs)
    quicken_convolutions(ours)
    batch = torch.randn(images, 4, *shape, dtype=torch.float64).to(memory_format=torch.channels_last).requires_grad_()
    towards = torch.randn_like(theirs(batch))
    results = []
    for side in (ours, theirs):
        answers = side(batch)
        results.append((answers, *torch.autograd.grad(answers, [batch, *side.parameters()], towards)))
    return results


def is_ours(answers: torch.Tensor) -> bool:
    assert answers.grad_fn is not None
    return "Convolution" not in answers.grad_fn.name()


@pytest.mark.parametrize(("shape", "conv"), ONE_POSITION, ids=str)
def test_where_one_position_is_left_answers_gradients_and_layouts_are_pytorchs(
    shape: tuple[int, int], conv: dict[str, Any]
) -> None:
    ours, theirs = both(shape, conv)
    assert is_ours(ours[0])
    assert not is_ours(theirs[0])
    assert ours[0].shape == (3, 6, 1, 1)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
        assert one.stride() == other.stride()


@pytest.mark.parametrize(("shape", "conv"), MORE_POSITIONS, ids=str)
def test_where_more_are_left_it_is_pytorchs_own(shape: tuple[int, int], conv: dict[str, Any]) -> None:
    ours, theirs = both(shape, conv)
    assert not is_ours(ours[0])
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def test_two_images_are_enough_and_one_is_left_to_pytorch() -> None:
    (two, *_), _ = both((1, 1), {"kernel_size": 1}, images=2)
    (one, *_), _ = both((1, 1), {"kernel_size": 1}, images=1)
    assert is_ours(two)
    assert not is_ours(one)
    assert LastPositionConv2d(4, 6, 3)(torch.rand(4, 3, 3)).shape == (6, 1, 1)  # one that is no batch


def test_an_image_smaller_than_its_kernel_is_refused_as_pytorch_does() -> None:
    with pytest.raises(RuntimeError, match="Kernel size can't be greater than actual input size"):
        LastPositionConv2d(4, 6, 3)(torch.rand(2, 4, 2, 2))


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
def test_in_a_shorter_type_it_answers_in_that_type_and_learns_in_float32(precision: torch.dtype) -> None:
    conv = LastPositionConv2d(4, 6, 3, padding=1)
    images = torch.rand(2, 4, 1, 1)
    with torch.autocast("cpu", precision):
        answers = conv(images)
    assert is_ours(answers)
    assert answers.dtype is precision
    torch.testing.assert_close(answers.float(), nn.Conv2d.forward(conv, images), rtol=0.02, atol=0.02)
    answers.float().sum().backward()
    assert conv.weight.grad is not None
    assert conv.weight.grad.dtype is torch.float32


@pytest.mark.parametrize("build", [resnet18, mobilenet_v3_small])
def test_a_whole_network_answers_as_before(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    network = build(num_classes=3).double().eval()
    quick = copy.deepcopy(network)
    quicken_convolutions(quick)
    batch = torch.rand(2, 3, 32, 32, dtype=torch.float64)
    products = []
    monkeypatch.setattr(convolution, "linear", lambda *factors: products.append(0) or linear(*factors))
    with torch.inference_mode():
        torch.testing.assert_close(quick(batch), network(batch), rtol=1e-10, atol=1e-12)
    assert products


@pytest.mark.parametrize("conv", OTHER_CONVOLUTIONS, ids=repr)
def test_other_convolutions_stay_as_they_are(conv: nn.Module) -> None:
    kind = type(conv)
    quicken_convolutions(conv)
    assert type(conv) is kind
