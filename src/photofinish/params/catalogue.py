"""Names that torchvision knows (its classifiers with their published weights, its classification data sets), and what
fits together: which images a network can take, which losses go with what it is to tell of them.

Written out, so that `plan` can check it without the seconds that importing torchvision takes, where the data are known;
the training asks in any case, and without pydantic. Tests compare the names with torchvision's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from photofinish.own_code import is_reference

if TYPE_CHECKING:
    from photofinish.data import Dtype, PartName, Task
    from photofinish.params.networks import CnnModel, Model, TorchvisionModel

    PartArguments = Mapping[PartName, Mapping[str, Any]]

_V1, _V2, _SWAG = ("IMAGENET1K_V1",), ("IMAGENET1K_V2",), ("IMAGENET1K_SWAG_E2E_V1", "IMAGENET1K_SWAG_LINEAR_V1")
_WITH_V1 = (
    "alexnet", "convnext_base", "convnext_large", "convnext_small", "convnext_tiny", "densenet121", "densenet161",
    "densenet169", "densenet201", "efficientnet_b0", "efficientnet_b2", "efficientnet_b3", "efficientnet_b4",
    "efficientnet_b5", "efficientnet_b6", "efficientnet_b7", "efficientnet_v2_l", "efficientnet_v2_m",
    "efficientnet_v2_s", "googlenet", "inception_v3", "maxvit_t", "mnasnet0_5", "mnasnet0_75", "mnasnet1_0",
    "mnasnet1_3", "mobilenet_v3_small", "resnet18", "resnet34", "resnext101_64x4d", "shufflenet_v2_x0_5",
    "shufflenet_v2_x1_0", "shufflenet_v2_x1_5", "shufflenet_v2_x2_0", "squeezenet1_0", "squeezenet1_1", "swin_b",
    "swin_s", "swin_t", "swin_v2_b", "swin_v2_s", "swin_v2_t", "vgg11", "vgg11_bn", "vgg13", "vgg13_bn", "vgg16",
    "vgg16_bn", "vgg19", "vgg19_bn", "vit_b_32", "vit_l_32",
)  # fmt: skip
"""vgg16 also has IMAGENET1K_FEATURES, whose other layers hold no numbers, so that nothing could be classified."""
_WITH_V1_AND_V2 = (
    "efficientnet_b1", "mobilenet_v2", "mobilenet_v3_large", "regnet_x_16gf", "regnet_x_1_6gf", "regnet_x_32gf",
    "regnet_x_3_2gf", "regnet_x_400mf", "regnet_x_800mf", "regnet_x_8gf", "regnet_y_1_6gf", "regnet_y_3_2gf",
    "regnet_y_400mf", "regnet_y_800mf", "regnet_y_8gf", "resnet101", "resnet152", "resnet50", "resnext101_32x8d",
    "resnext50_32x4d", "wide_resnet101_2", "wide_resnet50_2",
)  # fmt: skip
_WEIGHTS_OF = {
    **dict.fromkeys(_WITH_V1, _V1),
    **dict.fromkeys(_WITH_V1_AND_V2, _V1 + _V2),
    **dict.fromkeys(("regnet_y_128gf", "vit_h_14"), _SWAG),
    **dict.fromkeys(("regnet_y_16gf", "regnet_y_32gf"), _V1 + _V2 + _SWAG),
    **dict.fromkeys(("vit_b_16", "vit_l_16"), _V1 + _SWAG),
}
CLASSIFIERS: dict[str, tuple[str, ...]] = dict(sorted(_WEIGHTS_OF.items()))
"""Each with the names of its weights."""

_BY_FLAG: PartArguments = {"train": {"train": True}, "test": {"train": False}}
_BY_NAME: PartArguments = {"train": {"split": "train"}, "test": {"split": "test"}}
_UNDIVIDED: PartArguments = {}
_ALL_BY_NAME: PartArguments = {"train": {"split": "train"}, "validation": {"split": "val"}, "test": {"split": "test"}}

_PARTS_OF: dict[str, PartArguments] = {
    **dict.fromkeys(("CIFAR10", "CIFAR100", "EMNIST", "FashionMNIST", "KMNIST", "MNIST", "QMNIST", "USPS"), _BY_FLAG),
    **dict.fromkeys(("Food101", "GTSRB", "STL10", "SVHN"), _BY_NAME),
    **dict.fromkeys(("DTD", "FGVCAircraft", "Flowers102", "RenderedSST2"), _ALL_BY_NAME),
    "Country211": {**_ALL_BY_NAME, "validation": {"split": "valid"}},
    "Imagenette": {"train": {"split": "train"}, "validation": {"split": "val"}},
    "OxfordIIITPet": {"train": {"split": "trainval"}, "test": {"split": "test"}},
    **dict.fromkeys(("Caltech101", "Caltech256", "EuroSAT", "SEMEION", "SUN397"), _UNDIVIDED),
}
DATASETS = dict(sorted(_PARTS_OF.items()))
"""Each with the parts that it comes divided into, and what asks its class for them; the others come undivided.

Left out are those that torchvision no longer downloads (StanfordCars, FER2013, LFWPeople, ImageNet), that lie on Google
Drive as HDF5 (PCAM), whose test images have no labels (Places365, CLEVRClassification, INaturalist), whose parts have
other classes each (Omniglot), and those that aren't for classification. A folder or a CSV takes them all.
"""

IMAGES_TO_DIVIDE = {
    "CIFAR10": 50_000, "CIFAR100": 50_000, "Caltech101": 8_677, "Caltech256": 30_607, "EuroSAT": 27_000,
    "FashionMNIST": 60_000, "Food101": 75_750, "GTSRB": 26_640, "Imagenette": 9_469, "KMNIST": 60_000, "MNIST": 60_000,
    "OxfordIIITPet": 3_680, "QMNIST": 60_000, "SEMEION": 1_593, "STL10": 5_000, "SUN397": 108_754, "SVHN": 73_257,
    "USPS": 7_291,
}  # fmt: skip
"""How many images parts are drawn from: the training part's, or all. EMNIST's are below; no part of others is drawn."""
EMNIST_VARIANTS = {
    "balanced": 112_800, "byclass": 697_932, "bymerge": 697_932, "digits": 240_000, "letters": 124_800, "mnist": 60_000,
}  # fmt: skip
CHANNELS_AND_SIDES = {
    **dict.fromkeys(("EMNIST", "FashionMNIST", "KMNIST", "MNIST", "QMNIST"), (1, (28, 28))),
    **dict.fromkeys(("SEMEION", "USPS"), (1, (16, 16))),
    **dict.fromkeys(("CIFAR10", "CIFAR100", "SVHN"), (3, (32, 32))),
    "EuroSAT": (3, (64, 64)),
    "STL10": (3, (96, 96)),
}
"""Of the data sets whose images are all of one size; the others have three channels and images of many sizes."""


_LEAST_SIDE_OF_LENET = 16
_OF_ANY_SHAPE = ("linear", "mlp")
"""they flatten it"""
_LEAST_SIDES = {
    "alexnet": 63, "convnext": 32, "densenet": 29, "googlenet": 15, "inception": 75, "maxvit": 221, "squeezenet1_0": 21,
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


LOSSES: dict[Task, tuple[str, ...]] = {
    "classes": ("cross_entropy",),
    "values": ("mse", "l1", "smooth_l1"),
    "labels": ("bce_with_logits",),
}
"""of each task, the one that is taken by default first"""
GIVEN_TO_TORCHMETRICS = ("task", "num_classes", "num_labels")
"""what a function of torchmetrics is given where it takes it"""
_IN_WORDS: dict[Task, str] = {
    "classes": "one class of an image",
    "values": "values (floats)",
    "labels": "several labels, each yes or no",
}


def loss_problem(loss: str | None, task: Task) -> str | None:
    """Why a training can't go by this loss; one's own may be for whatever it likes."""
    if loss is None or is_reference(loss) or loss in LOSSES[task]:
        return None
    of = next(task for task, losses in LOSSES.items() if loss in losses)
    return (
        f"loss {loss} is for {_IN_WORDS[of]}; the targets of this data set are {_IN_WORDS[task]}: "
        f"take {' or '.join(LOSSES[task])}, or leave loss out"
    )
