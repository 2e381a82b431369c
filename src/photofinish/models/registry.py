"""The registry of networks. Each is built of torch's own modules, so that its pickle loads without photofinish;
torchvision's start from the seed, or from published weights with a new last layer.

Adaptive average-pooling becomes what plain layers do the same by: PyTorch has no deterministic backward pass of
nn.AdaptiveAvgPool2d on CUDA, at any size, even where it changes nothing, and AlexNet and VGG could not be trained there
with the same result each time. Pooling by fixed windows (nn.AvgPool2d) and repeating pixels (nn.Upsample) have one.
Every device gets the same layers. To one pixel, PyTorch itself takes a mean.
"""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import nn
from torch.nn import functional

from photofinish.errors import MistakeError, UserError
from photofinish.models.own import Shape, blank, build_own, generators_seeded
from photofinish.own_code import is_reference
from photofinish.params.catalogue import input_problem

if TYPE_CHECKING:
    from photofinish.data import Dtype
    from photofinish.params.networks import Init, Model, OwnModel, TorchvisionModel

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_PUBLISHED_CLASSES = 1000  # ImageNet's
_WITH_AUXILIARY_HEADS = ("googlenet", "inception_v3")
_AUXILIARY = ("AuxLogits.", "aux1.", "aux2.")
_OLD_DENSENET_NAME = re.compile(r"(denselayer\d+\.(?:norm|conv))\.(\d)\.")


def build_model(
    model: Model, shape: Shape, classes: int, seed: int, weights: Path | None = None, dtype: Dtype = "uint8"
) -> nn.Module:
    """The network with its initial weights: made on the CPU from the seed, so equal for every device.

    `weights` is the file of the published ones, where the model names some; `dtype` what items are packed in.
    """
    if problem := input_problem(model, shape, dtype):
        raise MistakeError(problem)
    with generators_seeded(seed):
        if is_reference(model.name):
            return build_own(cast("OwnModel", model), shape, classes, dtype, weights)
        if model.name in _MADE_HERE:
            return _made_here(_MADE_HERE[model.name](model), shape, classes, cast(Any, model).init)
        return _torchvision_classifier(cast("TorchvisionModel", model), shape, classes, weights)


def count_parameters(network: nn.Module) -> int:
    """Of all weights, frozen ones included."""
    return sum(parameter.numel() for parameter in network.parameters())


class _Layers(NamedTuple):
    """Of a network that is made here: convolutions, each with max-pooling and ReLU, then linear layers with ReLU."""

    channels: tuple[int, ...] = ()
    kernel_size: int = 1
    padding: int = 0
    hidden: tuple[int, ...] = ()


_MADE_HERE: dict[str, Callable[[Any], _Layers]] = {
    "linear": lambda _: _Layers(),
    "mlp": lambda model: _Layers(hidden=model.hidden),
    "cnn": lambda model: _Layers(model.channels, model.kernel_size, model.padding, model.hidden),
    "lenet": lambda _: _Layers((6, 12), kernel_size=5, hidden=(120, 60)),
}


def _made_here(wanted: _Layers, shape: Shape, classes: int, init: Init) -> nn.Module:
    layers: list[nn.Module] = []
    channels = shape[0]
    for width in wanted.channels:
        convolution = nn.Conv2d(channels, width, wanted.kernel_size, padding=wanted.padding)
        # As ReLU and then max-pooling, to the bit, for a quarter of ReLU's work: the largest is the largest.
        layers += [convolution, nn.MaxPool2d(2), nn.ReLU()]
        channels = width
    with torch.no_grad():
        inputs = nn.Sequential(*layers)(torch.zeros(1, *shape)).numel()
    layers.append(nn.Flatten())
    for width in wanted.hidden:
        layers += [nn.Linear(inputs, width), nn.ReLU()]
        inputs = width
    network = nn.Sequential(*layers, nn.Linear(inputs, classes))
    if init == "xavier_uniform":
        for module in network:
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(cast(torch.Tensor, module.bias))
    return network


def _torchvision_classifier(model: TorchvisionModel, shape: Shape, classes: int, weights: Path | None) -> nn.Module:
    """Where `model` names published weights but no file is given: the same network, to load a trained one's into."""
    from torchvision.models import get_model, get_model_weights  # takes a second to import

    is_published = model.weights is not None
    arguments: dict[str, Any] = {"num_classes": _PUBLISHED_CLASSES if is_published else classes}
    # And what torchvision itself passes for these weights; auxiliary heads are for another way of training.
    if model.name in _WITH_AUXILIARY_HEADS:
        arguments |= {"aux_logits": False, "init_weights": not is_published, "transform_input": is_published}
    elif is_published and model.name.startswith("vit_"):  # some of its weights are for larger images
        arguments["image_size"] = get_model_weights(model.name)[model.weights].meta["min_size"][0]
    network: nn.Module = get_model(model.name, weights=None, **arguments)
    if weights is not None:
        _load_published(network, weights)
    if is_published:
        replace_last_layer(network, classes)
    try:
        _fix_pooling(network.eval(), torch.zeros(1, *shape))
    except (AssertionError, RuntimeError) as error:  # some take images of one size, others from a size upwards
        raise MistakeError(f"model {model.name} can't take images of {shape[1]}x{shape[2]} pixels: {error}") from error
    return network.train()


def replace_last_layer(network: nn.Module, classes: int) -> None:
    """By a new one of the same kind, with one output a class: a linear layer, or squeezenet's convolution."""
    layers = [(name, layer) for name, layer in network.named_modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    name, last = layers[-1]
    has_bias = last.bias is not None
    if isinstance(last, nn.Linear):
        new: nn.Module = nn.Linear(last.in_features, classes, bias=has_bias)
    else:
        new = nn.Conv2d(last.in_channels, classes, kernel_size=last.kernel_size[0], bias=has_bias)
    network.set_submodule(name, new)


def _load_published(network: nn.Module, weights: Path) -> None:
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


def refuse_lone_images(
    network: nn.Module,
    shape: Shape,
    image_count: int,
    batch_size: int,
    normalised: Callable[[int], int] = int,
    dtype: Dtype = "uint8",
) -> None:
    """Refuse, before training, what leaves batch-norm a single image, if this network can't learn from one.

    `normalised` tells over how many images of a batch, at the least, batch-norm takes its statistics.
    """

    def leaves_one(size: int) -> bool:
        """Whether batches of so many leave batch-norm a single image."""
        batches = {min(size, image_count), image_count % size} - {0}
        return any(normalised(images) < 2 for images in batches)

    if not leaves_one(batch_size) or not _fails_on_one(network, blank(shape, dtype)):
        return
    sizes = chain(range(batch_size + 1, image_count + 1), range(min(batch_size, image_count), 1, -1))
    fitting = next((size for size in sizes if not leaves_one(size)), None)
    if fitting is None:
        raise MistakeError(
            f"model has batch-norm, which can't learn from one image, and every batch_size leaves one: "
            f"{image_count} training images are too few for the devices that share a batch"
        )
    raise MistakeError(
        f"batch_size {batch_size} in params.yaml leaves a single image to batch-norm ({image_count} training images, "
        f"shared among the devices), which can't learn from one: set another batch_size, {fitting} for instance"
    )


def _fails_on_one(network: nn.Module, one: torch.Tensor) -> bool:
    """Tried out on a copy: where the last batch-norm still sees several pixels, one image is enough."""
    if not any(isinstance(module, BATCH_NORMS) for module in network.modules()):
        return False
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            copy.deepcopy(network).train()(one)
        except ValueError as error:
            if "more than 1 value per channel" not in str(error):
                raise
            return True
    return False


class _Windows(NamedTuple):
    """Along one side of an image: each pixel so many times, then means of windows."""

    times: int
    kernel: int
    stride: int
    padding: int


def _fix_pooling(network: nn.Module, image: torch.Tensor) -> None:
    """What adapts to an image's size is fixed to the size of this one, which passes through all of it.

    Where no windows of one size do the same (5 pixels to 7), the layer stays; on CUDA it is then refused.
    """
    sizes: dict[nn.Module, tuple[tuple[int, ...], tuple[int, ...]]] = {}

    def note(module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        sizes[module] = inputs[0].shape[2:], output.shape[2:]

    adaptive = {name: each for name, each in network.named_modules() if isinstance(each, nn.AdaptiveAvgPool2d)}
    hooks = [module.register_forward_hook(note) for module in adaptive.values()]
    with torch.inference_mode():
        network(image)
    for hook in hooks:
        hook.remove()
    for name, module in adaptive.items():
        size, wanted = sizes.get(module, ((1, 1), (1, 1)))
        layer = None if wanted == (1, 1) else fixed_pooling(size, wanted)
        if layer is not None:
            network.set_submodule(name, layer)


def fixed_pooling(size: tuple[int, ...], wanted: tuple[int, ...]) -> nn.Module | None:
    """What pools images of this height and width to the wanted ones as nn.AdaptiveAvgPool2d does; None where plain
    layers can't."""
    down, across = (_windows(*sides) for sides in zip(size, wanted, strict=True))
    if down is None or across is None:
        return None
    layers: list[nn.Module] = []
    if (down.times, across.times) != (1, 1):
        layers.append(nn.Upsample(size=(size[0] * down.times, size[1] * across.times)))
    if (down.kernel, across.kernel) != (1, 1):
        kernel, stride, padding = zip(down[1:], across[1:], strict=True)
        layers.append(nn.AvgPool2d(kernel, stride, padding, count_include_pad=False))
    return layers[0] if len(layers) == 1 else nn.Sequential(*layers) if layers else nn.Identity()


def _windows(size: int, wanted: int) -> _Windows | None:
    """The simplest that give each output the same mean as adaptive pooling does, which is tried on each pixel alone."""
    pixels = torch.eye(size, device="cpu").unsqueeze(0)
    adaptive = functional.adaptive_avg_pool1d(pixels, wanted)
    found = []
    for times in range(1, wanted + 1):
        repeated = pixels.repeat_interleave(times, dim=2)
        stride = max(1, times * size // wanted)
        kernel = stride if times * size % wanted == 0 else stride + 1
        padding = ((wanted - 1) * stride + kernel - times * size) // 2  # with which as many windows as wanted fit in
        if 0 <= 2 * padding <= kernel:
            means = functional.avg_pool1d(repeated, kernel, stride, padding, count_include_pad=False)
            if means.shape == adaptive.shape and torch.allclose(means, adaptive):
                found.append(_Windows(times, kernel, stride, padding))
    # The fewest layers, then pixels: on the CPU one layer gives the bits of adaptive pooling, two may round otherwise.
    return min(found, key=lambda each: ((each.kernel > 1) + (each.times > 1), each.times), default=None)
