"""Adaptive pooling by plain layers, which repeat bit for bit on every device: the same means as PyTorch's own."""

from __future__ import annotations

import pickle

import pytest
import torch
from pydantic import TypeAdapter
from torch import nn

from photofinish.models.registry import build_model, fixed_pooling
from photofinish.params.networks import TorchvisionModel

SAME_BITS = [(7, 7), (1, 7), (6, 7), (8, 7), (14, 7), (6, 6), (1, 6), (3, 6), (7, 6), (12, 6)]
"""sides of what VGG and AlexNet pool, before and after, of images from 32 to 448 pixels"""
ROUNDED_OTHERWISE = [(2, 7), (3, 7), (4, 7)]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize(("side", "wanted"), [*SAME_BITS, *ROUNDED_OTHERWISE])
def test_means_are_those_of_adaptive_pooling(side: int, wanted: int, layout: torch.memory_format) -> None:
    images = torch.randn(3, 5, side, side).to(memory_format=layout).requires_grad_()
    found = fixed_pooling((side, side), (wanted, wanted))
    assert found is not None
    assert not [layer for layer in found.modules() if isinstance(layer, nn.AdaptiveAvgPool2d)]
    outputs, gradients = [], []
    for pool in (nn.AdaptiveAvgPool2d(wanted), found):
        pooled = pool(images)
        towards = torch.randn(pooled.shape, generator=torch.Generator().manual_seed(0))
        outputs.append(pooled)
        gradients.append(torch.autograd.grad(pooled, images, towards)[0])
    for here, there in (outputs, gradients):
        assert torch.equal(here, there) if (side, wanted) in SAME_BITS else torch.allclose(here, there, atol=1e-5)


def test_sides_differ_as_they_like() -> None:
    images = torch.randn(2, 3, 8, 3, dtype=torch.float64)
    found = fixed_pooling((8, 3), (7, 7))
    assert found is not None
    assert torch.allclose(found(images), nn.AdaptiveAvgPool2d(7)(images))


def test_what_no_windows_of_one_size_can_do_is_left() -> None:
    assert fixed_pooling((5, 5), (7, 7)) is None


def network(name: str, side: int) -> nn.Module:
    model = TypeAdapter(TorchvisionModel).validate_python({"name": name})
    return build_model(model, (3, side, side), 10, 0)


@pytest.mark.parametrize(
    ("name", "side", "layer"),
    [
        ("alexnet", 64, nn.Upsample),
        ("alexnet", 224, nn.Identity),
        ("vgg11", 32, nn.Upsample),
        ("vgg11", 64, nn.Sequential),
        ("vgg11", 224, nn.Identity),
        ("vgg11", 256, nn.AvgPool2d),
        ("vgg11", 160, nn.AdaptiveAvgPool2d),
        ("resnet18", 32, nn.AdaptiveAvgPool2d),
    ],
)
def test_a_network_gets_it_for_its_images(name: str, side: int, layer: type[nn.Module]) -> None:
    with torch.device("meta"):
        assert type(network(name, side).get_submodule("avgpool")) is layer


def test_the_weights_keep_their_names_and_a_pickle_needs_torch_alone() -> None:
    from torchvision.models import get_model

    with torch.device("meta"):
        built = network("alexnet", 64)
        assert built.state_dict().keys() == get_model("alexnet").state_dict().keys()
        assert b"photofinish" not in pickle.dumps(built.get_submodule("avgpool"))
