"""Settings of losses: PyTorch's, by short names, and custom losses."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, Tag

from photofinish.config.base import (
    BUILT_IN,
    OWN,
    CustomCode,
    PositiveFloat,
    Settings,
    Share,
    built_in_or_own,
)
from photofinish.config.pytorch_names import LOSSES as PYTORCH_LOSSES
from photofinish.custom.reference import is_reference

BUILT_IN_LOSSES_BY_CLASS = {
    "CrossEntropyLoss": "cross_entropy",
    "MSELoss": "mse",
    "L1Loss": "l1",
    "SmoothL1Loss": "smooth_l1",
    "BCEWithLogitsLoss": "bce_with_logits",
}
# Not strict, because _find_loss turns JSON into Python's objects, whose lists are no tuples.
NumberForEach = Annotated[tuple[PositiveFloat, ...], Field(min_length=1, strict=False)] | None


class CrossEntropy(Settings):
    """Loss torch.nn.CrossEntropyLoss, for one class per sample."""

    name: Literal["cross_entropy"]
    label_smoothing: Share = 0.0
    weight: NumberForEach = None
    """Weight of each class. The mean divides by the sum of the samples' weights."""
    ignore_index: Annotated[int, Field(ge=-(2**31), lt=2**31)] = -100
    """Class of positions that are ignored, if samples have a class for each position."""


class ValueLoss(Settings):
    """Loss torch.nn.MSELoss or L1Loss, for values."""

    name: Literal["mse", "l1"]


class SmoothL1(Settings):
    """Loss torch.nn.SmoothL1Loss, for values."""

    name: Literal["smooth_l1"]
    beta: PositiveFloat = 1.0


class BceWithLogits(Settings):
    """Loss torch.nn.BCEWithLogitsLoss, for several labels per sample."""

    name: Literal["bce_with_logits"]
    pos_weight: PositiveFloat | NumberForEach = None
    """Weight of a positive label, for all labels or for each. A negative label has weight 1.

    The mean divides by the number of items, not by these weights.
    """


class CustomLoss(CustomCode):
    """Class of torch.nn such as HuberLoss, or a custom class or function of (outputs, targets).

    Custom code returns the mean over the batch, or a sum and the weight to divide by.
    """


_BuiltInLoss = Annotated[
    CrossEntropy | ValueLoss | SmoothL1 | BceWithLogits, Field(discriminator="name")
]


def _find_loss(block: Any) -> Any:
    """Replace a name from torch.nn (`HuberLoss`, `huber`) by the built-in name or a reference."""
    name = block.get("name") if isinstance(block, dict) else None
    if not isinstance(name, str) or is_reference(name) or name in BUILT_IN_LOSSES_BY_CLASS.values():
        return block
    try:
        found = PYTORCH_LOSSES.reference(name).name
    except ValueError:
        return block  # reported later, with the allowed names
    return block | {"name": BUILT_IN_LOSSES_BY_CLASS.get(found, f"torch.nn:{found}")}


Loss = Annotated[
    Annotated[_BuiltInLoss, Tag(BUILT_IN)] | Annotated[CustomLoss, Tag(OWN)],
    built_in_or_own("name"),
    BeforeValidator(_find_loss),
]
