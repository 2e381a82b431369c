"""Networks: sizes, initial and published weights, and the images that they refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from torch import nn
from torchvision.models import get_model, get_model_builder, regnet

from photofinish.config.catalogue import CLASSIFIERS
from photofinish.config.networks import Model, TorchvisionModel
from photofinish.data import Shape
from photofinish.errors import UserError
from photofinish.models.registry import build_model, replace_last_layer

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
    assert sum(weight.numel() for weight in network.parameters()) == parameters
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


def test_each_kind_of_layer_has_the_initial_weights_that_are_set_for_it() -> None:
    init = {"conv": "xavier_normal", "linear": {"normal": 0.01}}
    convolution, *_, linear = built({**CNN, "hidden": (), "init": init}, classes=100)
    assert convolution.weight.std().item() == pytest.approx((2 / (9 + 9 * 16)) ** 0.5, rel=0.2)
    assert linear.weight.std().item() == pytest.approx(0.01, rel=0.02)
    assert not any(layer.bias.any() for layer in (convolution, linear))
    half = built({**CNN, "init": {"linear": "xavier_normal"}})
    assert torch.equal(half[0].weight, built(CNN)[0].weight)  # PyTorch's default
    assert not half[-1].bias.any()


@pytest.mark.parametrize(
    "init", ["he", {"dense": "default"}, {"conv": {"normal": 0}}, {"conv": {"std": 1}}, 1], ids=str
)
def test_initial_weights_that_are_unknown_are_refused_at_their_key(init: Any) -> None:
    with pytest.raises(ValidationError) as refused:
        built({**CNN, "init": init})
    assert [error["loc"][-1] for error in refused.value.errors()] == ["init"]


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


FAMILIES = {get_model_builder(name).__module__: name for name in CLASSIFIERS}


def model_of(name: str) -> TorchvisionModel:
    return TypeAdapter(TorchvisionModel).validate_python(
        {"name": name, "weights": CLASSIFIERS[name][0]}
    )


@pytest.mark.parametrize(
    ("name", "rename"),
    [
        pytest.param("squeezenet1_1", ("", ""), id="last layer is a convolution"),
        pytest.param("densenet121", ("norm1.", "norm.1."), id="old names"),
        pytest.param("googlenet", ("", ""), id="auxiliary heads"),
        pytest.param("mnasnet0_5", ("", ""), id="modules have versions"),
        pytest.param("mobilenet_v3_small", ("", ""), id="several layers to classify"),
    ],
)
@pytest.mark.filterwarnings("ignore:The default weight initialization of GoogleNet:FutureWarning")
def test_weights_are_loaded_as_torchvision_published_them(
    name: str, rename: tuple[str, str], tmp_path: Path
) -> None:
    published: nn.Module = get_model(name, weights=None)
    # As torchvision publishes it. The state also has the modules' versions.
    renamed = published.state_dict()
    for key in [key for key in renamed if rename[0] and rename[0] in key]:
        renamed[key.replace(*rename)] = renamed.pop(key)
    torch.save(renamed, file := tmp_path / "weights.pth")
    network = build_model(model_of(name), CIFAR, 7, 0, file)
    loaded, state = network.state_dict(), published.state_dict()
    changed = [
        key for key in loaded if key not in state or not torch.equal(loaded[key], state[key])
    ]
    assert {key.rpartition(".")[0] for key in changed} == {changed[0].rpartition(".")[0]}
    assert 7 in loaded[changed[0]].shape
    assert network.training
    assert network(torch.zeros(2, *CIFAR)).shape == (2, 7)
    empty = build_model(model_of(name), CIFAR, 7, 0)  # as a trained one is read back
    empty.load_state_dict(loaded)
    assert str(empty) == str(network)


@pytest.mark.parametrize("name", FAMILIES.values())
def test_the_last_layer_of_each_family_of_classifiers_has_the_1000_classes(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_blocks = regnet.BlockParams.from_init_params

    def on_the_cpu(*arguments: object, **named: object) -> object:
        with torch.device("cpu"):  # it computes layer widths with tensors
            return make_blocks(*arguments, **named)

    monkeypatch.setattr(regnet.BlockParams, "from_init_params", on_the_cpu)
    with torch.device("meta"):  # shapes without memory
        arguments = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
        network: nn.Module = get_model(name, weights=None, **arguments)
        replace_last_layer(network, 7)
    layers = [layer for layer in network.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    assert 7 in (getattr(layers[-1], "out_features", 0), getattr(layers[-1], "out_channels", 0))
    weights = dict(network.named_parameters()).items()
    assert 1000 not in [len(each) for key, each in weights if not key.lower().startswith("aux")]


def test_published_weights_of_inception_expect_its_own_normalisation() -> None:
    with torch.device("meta"):
        network = build_model(model_of("inception_v3"), (3, 299, 299), 7, 0)
    assert network.transform_input is True
