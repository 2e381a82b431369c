"""Names of torchvision's classifiers, their weights and its data sets.

They are literals so that `plan` need not import torchvision. Tests compare them with torchvision.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from photofinish.data import PartName

    PartArguments = Mapping[PartName, Mapping[str, Any]]

_V1 = ("IMAGENET1K_V1",)
_V2 = ("IMAGENET1K_V2",)
_SWAG = ("IMAGENET1K_SWAG_E2E_V1", "IMAGENET1K_SWAG_LINEAR_V1")
_WITH_V1 = """
    alexnet convnext_base convnext_large convnext_small convnext_tiny densenet121 densenet161
    densenet169 densenet201 efficientnet_b0 efficientnet_b2 efficientnet_b3 efficientnet_b4
    efficientnet_b5 efficientnet_b6 efficientnet_b7 efficientnet_v2_l efficientnet_v2_m
    efficientnet_v2_s googlenet inception_v3 maxvit_t mnasnet0_5 mnasnet0_75 mnasnet1_0
    mnasnet1_3 mobilenet_v3_small resnet18 resnet34 resnext101_64x4d shufflenet_v2_x0_5
    shufflenet_v2_x1_0 shufflenet_v2_x1_5 shufflenet_v2_x2_0 squeezenet1_0 squeezenet1_1 swin_b
    swin_s swin_t swin_v2_b swin_v2_s swin_v2_t vgg11 vgg11_bn vgg13 vgg13_bn vgg16 vgg16_bn
    vgg19 vgg19_bn vit_b_32 vit_l_32
""".split()  # noqa: SIM905  # a list would take a line per name
_WITH_V1_AND_V2 = """
    efficientnet_b1 mobilenet_v2 mobilenet_v3_large regnet_x_16gf regnet_x_1_6gf regnet_x_32gf
    regnet_x_3_2gf regnet_x_400mf regnet_x_800mf regnet_x_8gf regnet_y_1_6gf regnet_y_3_2gf
    regnet_y_400mf regnet_y_800mf regnet_y_8gf resnet101 resnet152 resnet50 resnext101_32x8d
    resnext50_32x4d wide_resnet101_2 wide_resnet50_2
""".split()  # noqa: SIM905  # a list would take a line per name
CLASSIFIERS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_WITH_V1, _V1),
    **dict.fromkeys(_WITH_V1_AND_V2, _V1 + _V2),
    **dict.fromkeys(("regnet_y_128gf", "vit_h_14"), _SWAG),
    **dict.fromkeys(("regnet_y_16gf", "regnet_y_32gf"), _V1 + _V2 + _SWAG),
    **dict.fromkeys(("vit_b_16", "vit_l_16"), _V1 + _SWAG),
}
"""Published weights of each classifier, without those that lack classifying layers."""

_BY_FLAG: PartArguments = {"train": {"train": True}, "test": {"train": False}}
_BY_NAME: PartArguments = {"train": {"split": "train"}, "test": {"split": "test"}}
_UNDIVIDED: PartArguments = {}
_ALL_BY_NAME: PartArguments = {**_BY_NAME, "validation": {"split": "val"}}
_MNIST_LIKE = ("FashionMNIST", "KMNIST", "MNIST", "QMNIST")

DATASETS: dict[str, PartArguments] = {
    **dict.fromkeys(("CIFAR10", "CIFAR100", *_MNIST_LIKE, "USPS"), _BY_FLAG),
    **dict.fromkeys(("Food101", "GTSRB", "STL10", "SVHN"), _BY_NAME),
    **dict.fromkeys(("DTD", "FGVCAircraft", "Flowers102", "RenderedSST2"), _ALL_BY_NAME),
    "Country211": {**_BY_NAME, "validation": {"split": "valid"}},
    "Imagenette": {"train": {"split": "train"}, "validation": {"split": "val"}},
    "OxfordIIITPet": {"train": {"split": "trainval"}, "test": {"split": "test"}},
    **dict.fromkeys(("Caltech101", "Caltech256", "EuroSAT", "SEMEION"), _UNDIVIDED),
}
"""Parts that torchvision divides each data set into, and the arguments that select a part.

Only classification data sets are listed. Left out are data sets that torchvision no longer
downloads, has in variants, or reads in the file system's order. Others lack labels for test
samples, or have other classes in each part.
"""

GREY = frozenset({*_MNIST_LIKE, "SEMEION", "USPS"})
"""Data sets of one channel. torchvision converts all other images to three."""

GIVEN_TO_TORCHMETRICS = ("task", "num_classes", "num_labels")
"""Arguments that a torchmetrics function gets if its signature has them."""
