"""Networks: sizes, initial weights, and the images that they refuse."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import TypeAdapter
from torch import nn

from photofinish.config.networks import Model
from photofinish.data import Shape
from photofinish.errors import UserError
from photofinish.models.registry import build_model, count_parameters

MNIST: Shape = (1, 28, 28)
CIFAR: Shape = (3, 32, 32)
LINEAR: dict[str, Any] = {"name": "linear"}
MLP: dict[str, Any] = {"name": "mlp", "hidden": (128,)}
CNN: dict[str, Any] = {"name": "cnn", "channels": (16, 32), "hidden": (64,)}
LENET: dict[str, Any] = {"name": "lenet"}


def built(
    settings: dict[str, Any], shape: Shape = MNIST, classes: int = 10, seed: int = 0
) -> nn.Module:
    model: Model = TypeAdapter(Model).validate_python(settings)
    return build_model(model, shape, classes, seed)


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(first, second) for first, second in pairs)


@pytest.mark.parametrize(
    ("settings", "shape", "parameters"),
    [
        (LINEAR, MNIST, 7_850),
        (MLP, MNIST, 784 * 128 + 128 + 128 * 10 + 10),
        (CNN, (1, 8, 8), 160 + 4_640 + (128 * 64 + 64) + (64 * 10 + 10)),
        (CNN | {"hidden": ()}, (1, 8, 8), 160 + 4_640 + 128 * 10 + 10),
        (LENET, MNIST, 156 + 1_812 + (192 * 120 + 120) + (120 * 60 + 60) + (60 * 10 + 10)),
        ({"name": "resnet18"}, CIFAR, 11_181_642),
    ],
    ids=str,
)
def test_a_network_has_the_parameters_worked_out_by_hand_and_loads_anywhere(
    settings: dict[str, Any], shape: Shape, parameters: int
) -> None:
    network = built(settings, shape)
    assert count_parameters(network) == parameters
    packages = {type(module).__module__.partition(".")[0] for module in network.modules()}
    assert packages <= {"torch", "torchvision"}  # so its pickle needs no photofinish


@pytest.mark.parametrize("settings", [LINEAR, MLP, CNN, LENET, {"name": "resnet18"}], ids=str)
def test_the_first_weights_depend_on_the_seed_alone_and_leave_the_random_stream_as_it_was(
    settings: dict[str, Any],
) -> None:
    torch.manual_seed(1)
    first = built(settings, CIFAR)
    torch.manual_seed(2)
    before = torch.get_rng_state()
    again = built(settings, CIFAR)
    assert torch.equal(torch.get_rng_state(), before)
    assert same_weights(first, again)
    assert not same_weights(first, built(settings, CIFAR, seed=1))


@pytest.mark.parametrize(
    ("settings", "shape", "message"),
    [
        ({"name": "resnet18"}, MNIST, "model resnet18 can't take"),
        (LENET, (1, 15, 40), r"model lenet can't take samples of shape \(1, 15, 40\)"),
    ],
)
def test_images_that_a_network_cannot_take_are_refused(
    settings: dict[str, Any], shape: Shape, message: str
) -> None:
    with torch.device("meta"), pytest.raises(UserError, match=message):
        built(settings, shape)
