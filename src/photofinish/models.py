"""The registry of networks. Each is built of torch's own modules, so that its pickle loads without photofinish."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from photofinish.errors import UserError

if TYPE_CHECKING:
    from photofinish.params import Model

Shape = tuple[int, int, int]
"""channels, height, width"""
_WITHOUT_AUXILIARY_HEADS = ("googlenet", "inception_v3")


def build_model(model: Model, shape: Shape, classes: int, seed: int) -> nn.Module:
    """The network with its initial weights: made on the CPU from the seed, so equal for every device."""
    build = _BUILDERS.get(model.name, _torchvision)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build(model, shape, classes)


def count_parameters(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def _linear(_model: Any, shape: Shape, classes: int) -> nn.Module:
    return _head([], shape, (), classes)


def _mlp(model: Any, shape: Shape, classes: int) -> nn.Module:
    return _head([], shape, model.hidden, classes)


def _cnn(model: Any, shape: Shape, classes: int) -> nn.Module:
    """For each entry of `channels`: a 3x3 convolution, ReLU, and max-pooling that halves the image."""
    layers: list[nn.Module] = []
    channels, side = shape[0], min(shape[1:])
    for width in model.channels:
        if side < 2:
            raise UserError(
                f"model.channels {list(model.channels)} halves images of {shape[1]}x{shape[2]} too often: give fewer"
            )
        layers += [nn.Conv2d(channels, width, kernel_size=3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        channels, side = width, side // 2
    return _head(layers, shape, model.hidden, classes)


def _lenet(_model: Any, shape: Shape, classes: int) -> nn.Module:
    if min(shape[1:]) < 16:
        raise UserError(f"model lenet needs images of at least 16x16 pixels; these are {shape[1]}x{shape[2]}")
    layers = [
        nn.Conv2d(shape[0], 6, kernel_size=5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 12, kernel_size=5), nn.ReLU(), nn.MaxPool2d(2),
    ]  # fmt: skip
    return _head(layers, shape, (120, 60), classes)


def _torchvision(model: Any, shape: Shape, classes: int) -> nn.Module:
    from torchvision.models import get_model  # takes a second to import

    if shape[0] != 3:
        raise UserError(f"model {model.name} takes images of 3 channels; these have {shape[0]}")
    extra = {"aux_logits": False, "init_weights": True} if model.name in _WITHOUT_AUXILIARY_HEADS else {}
    network: nn.Module = get_model(model.name, weights=None, num_classes=classes, **extra)
    try:
        with torch.inference_mode():
            network.eval()(torch.zeros(1, *shape))
    except (AssertionError, RuntimeError) as error:  # some take images of one size, others from a size upwards
        raise UserError(f"model {model.name} can't take images of {shape[1]}x{shape[2]} pixels: {error}") from error
    return network.train()


def _head(features: list[nn.Module], shape: Shape, hidden: tuple[int, ...], classes: int) -> nn.Module:
    """Flatten what `features` make of an image, then hidden layers with ReLU, then one output a class."""
    with torch.no_grad():
        inputs = nn.Sequential(*features)(torch.zeros(1, *shape)).numel()
    layers = [*features, nn.Flatten()]
    for width in hidden:
        layers += [nn.Linear(inputs, width), nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, classes))


_BUILDERS: dict[str, Callable[[Any, Shape, int], nn.Module]] = {
    "linear": _linear,
    "mlp": _mlp,
    "cnn": _cnn,
    "lenet": _lenet,
}
