"""Which images a network can take, as far as that is known without building it.

`plan` asks where the data set's images are known, and the training asks in any case; it does without pydantic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from photofinish.own_code import is_reference
from photofinish.params.torchvision_names import CLASSIFIERS

if TYPE_CHECKING:
    from photofinish.data.images import Dtype
    from photofinish.params.networks import CnnModel, Model, TorchvisionModel

_LEAST_SIDE_OF_LENET = 16
_OF_ANY_SHAPE = ("linear", "mlp")
"""they flatten it"""
_LEAST_SIDES = {
    "alexnet": 63, "convnext": 32, "densenet": 29, "googlenet": 15, "inception": 75, "maxvit": 223, "squeezenet1_0": 21,
    "squeezenet1_1": 17, "swin": 4, "vgg": 32, "vit": 224,
}  # fmt: skip
"""of torchvision's classifiers, by what their names begin with: at one pixel less some layer has nothing left"""
_LARGEST_SIDES = {"maxvit": 224, "vit": 224}
_SIDES_OF_WEIGHTS = {"vit_b_16": 384, "vit_l_16": 512, "vit_h_14": 518}
"""those that were trained whole (E2E) on larger images, and take no others"""


def input_problem(model: Model, shape: tuple[int, ...], dtype: Dtype) -> str | None:
    """Why the network can't take items of this shape and type."""
    if is_reference(model.name):
        return None
    if dtype == "int64":
        return (
            f"model {model.name} takes images, or numbers with fractions; these items are whole numbers: write a "
            f"network of your own, which begins with an embedding for instance, or let the data set give floats"
        )
    if model.name in _OF_ANY_SHAPE:
        return None
    if len(shape) != len(("channels", "height", "width")):
        return f"model {model.name} takes images (channels, height, width); these items are of shape {shape}"
    return shape_problem(model, shape[0], (shape[1], shape[2]))


def shape_problem(model: Model, channels: int | None, sides: tuple[int, int] | None) -> str | None:
    """Why the network can't take images of so many channels, and of this height and width; None is not known."""
    if model.name in CLASSIFIERS and channels not in (3, None):
        return (
            f"model {model.name} takes images of 3 channels; these have {channels}: "
            f"set channels: 3 for the data set in params.yaml, or give colours where the data set is your own"
        )
    if sides and model.name in CLASSIFIERS:
        return _problem_of_classifier(cast("TorchvisionModel", model), sides)
    if sides and model.name == "lenet" and min(sides) < _LEAST_SIDE_OF_LENET:
        return f"model lenet needs images of at least 16x16 pixels; these are {sides[0]}x{sides[1]}"
    return _problem_of_convolutions(cast("CnnModel", model), sides) if sides and model.name == "cnn" else None


def _problem_of_classifier(model: TorchvisionModel, sides: tuple[int, int]) -> str | None:
    """As was measured of each of them."""
    least, largest = (
        next((side for name, side in known.items() if model.name.startswith(name)), None)
        for known in (_LEAST_SIDES, _LARGEST_SIDES)
    )
    if largest and "E2E" in (model.weights or ""):
        least = largest = _SIDES_OF_WEIGHTS[model.name]
    if least is None or (min(sides) >= least and (largest is None or max(sides) <= largest)):
        return None
    wanted = f"takes images of {largest}x{largest}" if largest else f"needs images of at least {least}x{least}"
    return (
        f"model {model.name} {wanted} pixels; these are {sides[0]}x{sides[1]}: "
        f"set size: {largest or least} for the data set in params.yaml, or take another model"
    )


def _problem_of_convolutions(model: CnnModel, sides: tuple[int, int]) -> str | None:
    side = min(sides)
    for depth in range(1, len(model.channels) + 1):
        convolved = side + 2 * model.padding - model.kernel_size + 1
        if convolved < 2:  # and max-pooling by 2 follows
            return (
                f"model.channels {list(model.channels)} with kernel_size {model.kernel_size} and padding "
                f"{model.padding} leaves nothing of images of {sides[0]}x{sides[1]} pixels at convolution {depth}, "
                f"which sees {side} of them at the shorter side: give fewer channels, a smaller kernel_size or more "
                f"padding"
            )
        side = convolved // 2
    return None
