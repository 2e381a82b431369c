"""Networks by name: built-in, torchvision's and custom.

Built-in networks have PyTorch's modules only, so that their pickles load without photofinish.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from photofinish.custom.reference import TIMM, is_reference
from photofinish.errors import ConfigError
from photofinish.models.custom import build_custom, generators_seeded
from photofinish.nested import Nested

if TYPE_CHECKING:
    from photofinish.config.networks import CustomModel, Model, TorchvisionModel
    from photofinish.data import Dtype

_BUILT_IN = ("linear", "mlp", "cnn", "lenet")
_PUBLISHED_CLASSES = 1000  # ImageNet's
_WITH_AUXILIARY_HEADS = ("googlenet", "inception_v3")
_AUXILIARY = ("AuxLogits.", "aux1.", "aux2.")
_OLD_DENSENET_NAME = re.compile(r"(denselayer\d+\.(?:norm|conv))\.(\d)\.")


def build_model(
    model: Model,
    shape: Any,
    classes: int,
    seed: int,
    weights: Path | None = None,
    dtype: Nested[Dtype] = "uint8",
) -> nn.Module:
    """Return the network with its initial weights, which the seed determines for every device."""
    if is_reference(model.name) and not model.name.startswith(f"{TIMM}:"):
        cast("CustomModel", model).reference.load()  # before seeding: imports may draw or seed
    with generators_seeded(seed):
        if is_reference(model.name):
            return build_custom(cast("CustomModel", model), shape, classes, dtype, weights)
        if not isinstance(dtype, str) or None in shape:
            raise ConfigError(
                f"model {model.name} takes one input of one shape, but samples have {shape}: "
                f"use a custom network"
            )
        if model.name in _BUILT_IN:
            return _built_in(model, shape, classes)
        return _torchvision_classifier(cast("TorchvisionModel", model), shape, classes, weights)


def _built_in(model: Any, shape: Any, classes: int) -> nn.Module:
    convolutions: tuple[int, ...] = ()
    hidden: tuple[int, ...] = ()
    kernel_size, padding = 1, 0
    if model.name == "lenet":
        convolutions, kernel_size, hidden = (6, 12), 5, (120, 60)
    elif model.name == "mlp":
        hidden = model.hidden
    elif model.name == "cnn":
        convolutions, hidden = model.channels, model.hidden
        kernel_size, padding = model.kernel_size, model.padding
    layers: list[nn.Module] = []
    channels = shape[0]
    for width in convolutions:
        # Max-pooling before ReLU gives the same bits for a quarter of ReLU's work.
        layers += [
            nn.Conv2d(channels, width, kernel_size, padding=padding),
            nn.MaxPool2d(2),
            nn.ReLU(),
        ]
        channels = width
    inputs = _try(model, nn.Sequential(*layers), shape).numel()
    layers.append(nn.Flatten())
    for width in hidden:
        layers += [nn.Linear(inputs, width), nn.ReLU()]
        inputs = width
    network = nn.Sequential(*layers, nn.Linear(inputs, classes))
    for layer in network:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            _initialize(layer, model.init)
    return network


def _initialize(layer: nn.Conv2d | nn.Linear, init: str | dict[str, Any]) -> None:
    if isinstance(init, dict):
        init = init.get("conv" if isinstance(layer, nn.Conv2d) else "linear", "default")
    if init == "default":
        return
    if isinstance(init, dict):
        nn.init.normal_(layer.weight, std=init["normal"])
    else:
        getattr(nn.init, f"{init}_")(layer.weight)
    nn.init.zeros_(cast(torch.Tensor, layer.bias))


def _torchvision_classifier(
    model: TorchvisionModel, shape: Any, classes: int, weights: Path | None
) -> nn.Module:
    from torchvision.models import get_model, get_model_weights  # takes a second

    is_published = model.weights is not None
    arguments: dict[str, Any] = {"num_classes": _PUBLISHED_CLASSES if is_published else classes}
    # torchvision passes these arguments for published weights.
    if model.name in _WITH_AUXILIARY_HEADS:
        arguments |= {
            "aux_logits": False,
            "init_weights": not is_published,
            "transform_input": is_published,
        }
    elif is_published and model.name.startswith("vit_"):  # some weights are for larger images
        arguments["image_size"] = get_model_weights(model.name)[model.weights].meta["min_size"][0]
    network: nn.Module = get_model(model.name, weights=None, **arguments)
    if weights is not None:
        state = torch.load(weights, map_location="cpu", weights_only=True)
        for name in list(state):  # in place, because the dict also holds the modules' versions
            if name.startswith(_AUXILIARY):
                del state[name]
            elif _OLD_DENSENET_NAME.search(name):
                state[_OLD_DENSENET_NAME.sub(r"\1\2.", name)] = state.pop(name)
        network.load_state_dict(state)
    if is_published:
        replace_last_layer(network, classes)
    _try(model, network.eval(), shape)
    return network.train()


def _try(model: Model, network: nn.Module, shape: Any) -> torch.Tensor:
    """Return the outputs for a sample of zeros. Raise ConfigError if torch raises an error."""
    try:
        with torch.no_grad():
            outputs: torch.Tensor = network(torch.zeros(1, *shape))
    except (AssertionError, RuntimeError) as error:
        raise ConfigError(
            f"model {model.name} can't take samples of shape {tuple(shape)} ({error}): "
            f"set size or channels for the data set"
        ) from error
    return outputs


def replace_last_layer(network: nn.Module, classes: int) -> None:
    """Replace the last layer, linear or squeezenet's convolution, by a new layer for `classes`."""
    layers = [
        (name, layer)
        for name, layer in network.named_modules()
        if isinstance(layer, nn.Linear | nn.Conv2d)
    ]
    name, last = layers[-1]
    bias = last.bias is not None
    if isinstance(last, nn.Linear):
        new: nn.Module = nn.Linear(last.in_features, classes, bias)
    else:
        new = nn.Conv2d(last.in_channels, classes, last.kernel_size[0], bias=bias)
    network.set_submodule(name, new)
