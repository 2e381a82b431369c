"""torchvision's classifiers, with first weights made from the seed or published ones whose last layer is replaced."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from photofinish.errors import MistakeError, UserError

if TYPE_CHECKING:
    from photofinish.params.networks import TorchvisionModel


_PUBLISHED_CLASSES = 1000  # ImageNet's
_WITH_AUXILIARY_HEADS = ("googlenet", "inception_v3")
_AUXILIARY = ("AuxLogits.", "aux1.", "aux2.")
_OLD_DENSENET_NAME = re.compile(r"(denselayer\d+\.(?:norm|conv))\.(\d)\.")


def build_classifier(
    model: TorchvisionModel, shape: tuple[int, int, int], classes: int, weights: Path | None
) -> nn.Module:
    """Where `model` names published weights but no file is given: the same network, to load a trained one's into."""
    from torchvision.models import get_model  # takes a second to import

    if shape[0] != 3:
        raise MistakeError(
            f"model {model.name} takes images of 3 channels; these have {shape[0]}: "
            f"set channels: 3 for the data set in params.yaml"
        )
    outputs = classes if model.weights is None else _PUBLISHED_CLASSES
    network: nn.Module = get_model(model.name, weights=None, num_classes=outputs, **_arguments(model))
    if weights is not None:
        _load(network, weights)
    if model.weights is not None:
        replace_last_layer(network, classes)
    _try_out(network, model.name, shape)
    return network.train()


def replace_last_layer(network: nn.Module, classes: int) -> None:
    """By a new one of the same kind, with one output a class: a linear layer, or squeezenet's convolution."""
    layers = [(name, layer) for name, layer in network.named_modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    name, last = layers[-1]
    has_bias = last.bias is not None
    new: nn.Module
    if isinstance(last, nn.Linear):
        new = nn.Linear(last.in_features, classes, bias=has_bias)
    else:
        new = nn.Conv2d(last.in_channels, classes, kernel_size=last.kernel_size[0], bias=has_bias)
    parent, _, own_name = name.rpartition(".")
    setattr(network.get_submodule(parent), own_name, new)


def _arguments(model: TorchvisionModel) -> dict[str, Any]:
    """What torchvision itself passes for these weights; auxiliary heads are for another way of training."""
    from torchvision.models import get_model_weights

    published = model.weights is not None
    if model.name in _WITH_AUXILIARY_HEADS:
        return {"aux_logits": False, "init_weights": not published, "transform_input": published}
    if published and model.name.startswith("vit_"):  # some of its weights are for larger images
        return {"image_size": get_model_weights(model.name)[model.weights].meta["min_size"][0]}
    return {}


def _load(network: nn.Module, weights: Path) -> None:
    try:
        state = torch.load(weights, map_location="cpu", weights_only=True)
        for name in list(state):  # in place, because the versions of its modules are kept beside the names
            if name.startswith(_AUXILIARY):
                del state[name]
            elif _OLD_DENSENET_NAME.search(name):
                state[_OLD_DENSENET_NAME.sub(r"\1\2.", name)] = state.pop(name)
        network.load_state_dict(state)
    except (OSError, RuntimeError, AttributeError, TypeError, EOFError, pickle.UnpicklingError) as error:
        raise UserError(f"{weights} doesn't hold this network's weights: {error}") from error


def _try_out(network: nn.Module, name: str, shape: tuple[int, int, int]) -> None:
    try:
        with torch.inference_mode():
            network.eval()(torch.zeros(1, *shape))
    except (AssertionError, RuntimeError) as error:  # some take images of one size, others from a size upwards
        raise MistakeError(f"model {name} can't take images of {shape[1]}x{shape[2]} pixels: {error}") from error
