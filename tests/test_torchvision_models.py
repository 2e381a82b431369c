"""Published weights are loaded into all layers of torchvision's classifiers but the last."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from pydantic import TypeAdapter
from torch import nn
from torchvision.models import get_model, get_model_builder, regnet

from photofinish.config.catalogue import CLASSIFIERS
from photofinish.config.networks import TorchvisionModel
from photofinish.models.registry import build_model, replace_last_layer

CIFAR = (3, 32, 32)
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
