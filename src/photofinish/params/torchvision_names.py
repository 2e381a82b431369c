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

_V1 = ("IMAGENET1K_V1",)
_V1_AND_V2 = ("IMAGENET1K_V1", "IMAGENET1K_V2")

CLASSIFIERS: dict[str, tuple[str, ...]] = {
    "alexnet": _V1,
    "convnext_base": _V1,
    "convnext_large": _V1,
    "convnext_small": _V1,
    "convnext_tiny": _V1,
    "densenet121": _V1,
    "densenet161": _V1,
    "densenet169": _V1,
    "densenet201": _V1,
    "efficientnet_b0": _V1,
    "efficientnet_b1": _V1_AND_V2,
    "efficientnet_b2": _V1,
    "efficientnet_b3": _V1,
    "efficientnet_b4": _V1,
    "efficientnet_b5": _V1,
    "efficientnet_b6": _V1,
    "efficientnet_b7": _V1,
    "efficientnet_v2_l": _V1,
    "efficientnet_v2_m": _V1,
    "efficientnet_v2_s": _V1,
    "googlenet": _V1,
    "inception_v3": _V1,
    "maxvit_t": _V1,
    "mnasnet0_5": _V1,
    "mnasnet0_75": _V1,
    "mnasnet1_0": _V1,
    "mnasnet1_3": _V1,
    "mobilenet_v2": _V1_AND_V2,
    "mobilenet_v3_large": _V1_AND_V2,
    "mobilenet_v3_small": _V1,
    "regnet_x_16gf": _V1_AND_V2,
    "regnet_x_1_6gf": _V1_AND_V2,
    "regnet_x_32gf": _V1_AND_V2,
    "regnet_x_3_2gf": _V1_AND_V2,
    "regnet_x_400mf": _V1_AND_V2,
    "regnet_x_800mf": _V1_AND_V2,
    "regnet_x_8gf": _V1_AND_V2,
    "regnet_y_128gf": ("IMAGENET1K_SWAG_E2E_V1", "IMAGENET1K_SWAG_LINEAR_V1"),
    "regnet_y_16gf": ("IMAGENET1K_V1", "IMAGENET1K_V2", "IMAGENET1K_SWAG_E2E_V1", "IMAGENET1K_SWAG_LINEAR_V1"),
    "regnet_y_1_6gf": _V1_AND_V2,
    "regnet_y_32gf": ("IMAGENET1K_V1", "IMAGENET1K_V2", "IMAGENET1K_SWAG_E2E_V1", "IMAGENET1K_SWAG_LINEAR_V1"),
    "regnet_y_3_2gf": _V1_AND_V2,
    "regnet_y_400mf": _V1_AND_V2,
    "regnet_y_800mf": _V1_AND_V2,
    "regnet_y_8gf": _V1_AND_V2,
    "resnet101": _V1_AND_V2,
    "resnet152": _V1_AND_V2,
    "resnet18": _V1,
    "resnet34": _V1,
    "resnet50": _V1_AND_V2,
    "resnext101_32x8d": _V1_AND_V2,
    "resnext101_64x4d": _V1,
    "resnext50_32x4d": _V1_AND_V2,
    "shufflenet_v2_x0_5": _V1,
    "shufflenet_v2_x1_0": _V1,
    "shufflenet_v2_x1_5": _V1,
    "shufflenet_v2_x2_0": _V1,
    "squeezenet1_0": _V1,
    "squeezenet1_1": _V1,
    "swin_b": _V1,
    "swin_s": _V1,
    "swin_t": _V1,
    "swin_v2_b": _V1,
    "swin_v2_s": _V1,
    "swin_v2_t": _V1,
    "vgg11": _V1,
    "vgg11_bn": _V1,
    "vgg13": _V1,
    "vgg13_bn": _V1,
    "vgg16": _V1,  # and IMAGENET1K_FEATURES, whose other layers hold no numbers, so that nothing could be classified
    "vgg16_bn": _V1,
    "vgg19": _V1,
    "vgg19_bn": _V1,
    "vit_b_16": ("IMAGENET1K_V1", "IMAGENET1K_SWAG_E2E_V1", "IMAGENET1K_SWAG_LINEAR_V1"),
    "vit_b_32": _V1,
    "vit_h_14": ("IMAGENET1K_SWAG_E2E_V1", "IMAGENET1K_SWAG_LINEAR_V1"),
    "vit_l_16": ("IMAGENET1K_V1", "IMAGENET1K_SWAG_E2E_V1", "IMAGENET1K_SWAG_LINEAR_V1"),
    "vit_l_32": _V1,
    "wide_resnet101_2": _V1_AND_V2,
    "wide_resnet50_2": _V1_AND_V2,
}
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

EMNIST_VARIANTS = ("balanced", "byclass", "bymerge", "digits", "letters", "mnist")
