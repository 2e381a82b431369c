"""Names that torchvision knows: its classifiers with their published weights, its classification data sets.

Written out, so that `plan` can check a name without the seconds that importing torchvision takes; tests compare
them with torchvision's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from photofinish.data.images import PartName

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
_ALL_BY_NAME: PartArguments = {"train": {"split": "train"}, "validation": {"split": "val"}, "test": {"split": "test"}}

DATASETS: dict[str, PartArguments] = {
    "CIFAR10": _BY_FLAG,
    "CIFAR100": _BY_FLAG,
    "Caltech101": {},
    "Caltech256": {},
    "Country211": {**_ALL_BY_NAME, "validation": {"split": "valid"}},
    "DTD": _ALL_BY_NAME,
    "EMNIST": _BY_FLAG,
    "EuroSAT": {},
    "FGVCAircraft": _ALL_BY_NAME,
    "FashionMNIST": _BY_FLAG,
    "Flowers102": _ALL_BY_NAME,
    "Food101": _BY_NAME,
    "GTSRB": _BY_NAME,
    "Imagenette": {"train": {"split": "train"}, "validation": {"split": "val"}},
    "KMNIST": _BY_FLAG,
    "MNIST": _BY_FLAG,
    "OxfordIIITPet": {"train": {"split": "trainval"}, "test": {"split": "test"}},
    "QMNIST": _BY_FLAG,
    "RenderedSST2": _ALL_BY_NAME,
    "SEMEION": {},
    "STL10": _BY_NAME,
    "SUN397": {},
    "SVHN": _BY_NAME,
    "USPS": _BY_FLAG,
}
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
