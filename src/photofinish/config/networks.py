"""Settings of networks, and of the published weights that training starts from."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, Tag, ValidationInfo, field_validator

from photofinish.config.base import (
    BUILT_IN,
    OWN,
    CustomCode,
    Name,
    NonNegativeInt,
    PositiveInt,
    Settings,
    built_in_or_own,
)
from photofinish.config.catalogue import CLASSIFIERS
from photofinish.custom.reference import TIMM
from photofinish.errors import SettingError

GIVEN_TO_NETWORKS = frozenset({"classes", "shape"})
"""Arguments that a custom network gets if its signature has them."""
RECORD = "weights.json"
_INITS = ("default", "xavier_uniform", "xavier_normal")


def _check_init(value: Any) -> Any:
    for kind, init in (value if isinstance(value, dict) else {"conv": value}).items():
        std: Any = init.get("normal") if isinstance(init, dict) and len(init) == 1 else None
        is_normal = type(std) in (int, float) and 0 < std < math.inf
        if kind not in ("conv", "linear") or not (init in _INITS or is_normal):
            raise SettingError("init", names=", ".join(_INITS))
    return value


Init = Annotated[str | dict[str, Any], BeforeValidator(_check_init)]
"""Initial weights: a name for all layers, or one for each kind, `conv` and `linear`.

`default` is PyTorch's. Otherwise, biases are zero. `{normal: 0.01}` is a standard deviation.
"""


class _Network(Settings):
    compile: bool = False


class LinearModel(_Network):
    """One linear layer."""

    name: Literal["linear"]
    init: Init = "default"


class MlpModel(_Network):
    """Linear layers with ReLU between them."""

    name: Literal["mlp"]
    hidden: Annotated[tuple[PositiveInt, ...], Field(min_length=1)]
    init: Init = "default"


class CnnModel(_Network):
    """Convolutions, each followed by max-pooling by 2 and ReLU, then linear layers."""

    name: Literal["cnn"]
    channels: Annotated[tuple[PositiveInt, ...], Field(min_length=1)]
    hidden: tuple[PositiveInt, ...] = ()
    kernel_size: PositiveInt = 3
    padding: NonNegativeInt = 1
    init: Init = "default"


class LenetModel(_Network):
    """Convolutions of 6 and 12 channels, then layers of 120 and 60."""

    name: Literal["lenet"]
    init: Init = "default"


class TorchvisionModel(_Network):
    """Classifier of torchvision."""

    name: Literal[tuple(CLASSIFIERS)]  # type: ignore[valid-type]  # mypy sees no names here
    weights: str | None = None
    """Name of published weights to start from. The last layer is replaced."""

    @field_validator("weights", mode="before")
    @classmethod
    def _check_weights(cls, weights: Any, info: ValidationInfo) -> Any:
        names = CLASSIFIERS.get(info.data.get("name", ""), ())
        if weights is not None and names and weights not in names:
            raise SettingError("weights", names=", ".join(names))
        return weights


class CustomModel(_Network, CustomCode):
    """Custom class or function, or a network such as `timm:resnet18`."""

    output: int | str | None = None
    """Part of its outputs that counts: a place or a name."""


_BuiltIn = Annotated[
    LinearModel | MlpModel | CnnModel | LenetModel | TorchvisionModel, Field(discriminator="name")
]
Model = Annotated[
    Annotated[_BuiltIn, Tag(BUILT_IN)] | Annotated[CustomModel, Tag(OWN)], built_in_or_own("name")
]


class PublishedWeights(Settings):
    """Name of the weights that torchvision or timm publishes for a network."""

    model: str
    weights: str
    """Name in torchvision, such as IMAGENET1K_V1, or `pretrained` for timm."""


def published_weights(model: Model) -> PublishedWeights | None:
    """Return the published weights that the network starts from, or None."""
    if isinstance(model, TorchvisionModel) and model.weights is not None:
        return PublishedWeights(model=model.name, weights=model.weights)
    if isinstance(model, CustomModel) and (
        model.reference.module == TIMM and model.arguments.get("pretrained")
    ):
        return PublishedWeights(model=model.name, weights="pretrained")
    return None


class WeightsPlan(Settings):
    """Plan of `download-weights`: data/plan/weights.json."""

    experiments: dict[Name, PublishedWeights | None]


class FetchedWeights(PublishedWeights):
    """Published weights that were downloaded, and their file."""

    file: str
    sha256: str


class InitialWeights(Settings):
    """Published weights of an experiment, if any: data/weights/<experiment>/weights.json."""

    published: FetchedWeights | None


def fetched_weights(model: Model, folder: Path | None) -> FetchedWeights | None:
    """Return the downloaded weights of `model`, or None without published weights."""
    if published_weights(model) is None:
        return None
    assert folder is not None
    fetched = InitialWeights.model_validate_json((folder / RECORD).read_bytes()).published
    assert fetched is not None
    return fetched
