"""Settings of losses, of the metrics that `evaluate` adds, and of early stopping."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, Tag, ValidationInfo, field_validator

from photofinish.config.base import (
    BUILT_IN,
    OWN,
    CustomCode,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    Settings,
    Share,
    built_in_or_own,
    spelled_out,
)
from photofinish.config.pytorch_names import LOSSES as PYTORCH_LOSSES
from photofinish.custom.reference import CodeReference, is_reference
from photofinish.errors import SettingError

BUILT_IN_LOSSES_BY_CLASS = {
    "CrossEntropyLoss": "cross_entropy",
    "MSELoss": "mse",
    "L1Loss": "l1",
    "SmoothL1Loss": "smooth_l1",
    "BCEWithLogitsLoss": "bce_with_logits",
}
# Not strict, because _find_loss turns JSON into Python's objects, whose lists are no tuples.
NumberForEach = Annotated[tuple[PositiveFloat, ...], Field(min_length=1, strict=False)] | None
TORCHMETRICS = "torchmetrics.functional"
_MLFLOW_NAME = re.compile(r"[\w./ -]+")


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
        class_name = PYTORCH_LOSSES.reference(name).name
    except ValueError:
        return block  # reported later, with the allowed names
    return block | {"name": BUILT_IN_LOSSES_BY_CLASS.get(class_name, f"torch.nn:{class_name}")}


Loss = Annotated[
    Annotated[_BuiltInLoss, Tag(BUILT_IN)] | Annotated[CustomLoss, Tag(OWN)],
    built_in_or_own("name"),
    BeforeValidator(_find_loss),
]


class Metric(CustomCode):
    """Function of torchmetrics.functional, or a custom function of (outputs, targets).

    `as` names the metric. It can't be an argument's name, as it is a Python keyword.
    """

    name: Annotated[str, AfterValidator(lambda name: _metric_reference(name) and name)]

    @property
    def reference(self) -> CodeReference:
        return _metric_reference(self.name)

    @property
    def arguments(self) -> dict[str, Any]:
        return {name: value for name, value in super().arguments.items() if name != "as"}

    @property
    def is_of_torchmetrics(self) -> bool:
        return self.reference.module == TORCHMETRICS

    @property
    def label(self) -> str:
        chosen = (self.model_extra or {}).get("as")
        return str(chosen or self.reference.name.rpartition(".")[2])


def _metric_reference(name: str) -> CodeReference:
    return CodeReference.of(name if is_reference(name) else f"{TORCHMETRICS}:{name}")


def _check_labels(metrics: tuple[Metric, ...]) -> tuple[Metric, ...]:
    if len({metric.label for metric in metrics}) < len(metrics):
        raise SettingError("metric twice")
    for metric in metrics:
        if not _MLFLOW_NAME.fullmatch(metric.label):
            raise SettingError("metric name", name=metric.label)
    return metrics


Metrics = Annotated[
    tuple[Annotated[Metric, BeforeValidator(spelled_out)], ...], AfterValidator(_check_labels)
]


class MetricsPlan(Settings):
    """Metrics that `evaluate` adds, and their code: data/plan/metrics/<experiment>.json."""

    metrics: Metrics
    custom_code: dict[str, str]


MONITORED: dict[str, Literal["min", "max"]] = {
    "validation_loss": "min",
    "validation_accuracy": "max",
}
"""Values that early stopping follows without a metric, and the better end."""


class EarlyStopping(Settings):
    """End of a training that no longer improves. The best weights are kept."""

    monitor: str = "validation_loss"
    """Value that must improve: validation_loss, validation_accuracy, or one of `metrics`."""
    mode: Literal["min", "max"] | None = Field(default=None, validate_default=True)
    """Direction of improvement. Required for a metric."""
    patience: PositiveInt
    """Number of epochs without improvement that end the training."""
    min_delta: NonNegativeFloat = 0.0
    """Smallest change that counts as improvement."""

    @field_validator("mode")
    @classmethod
    def _mode_of_a_metric(
        cls, mode: Literal["min", "max"] | None, info: ValidationInfo
    ) -> Literal["min", "max"] | None:
        monitor = info.data.get("monitor", "")
        if mode is None and monitor not in MONITORED:
            raise SettingError("mode", name=monitor)
        return mode or MONITORED[monitor]

    def is_better(self, value: float, best: float | None) -> bool:
        """Return True if there is no best value yet, or `value` improves on it."""
        if best is None:
            return True
        if self.mode == "max":
            return value > best + self.min_delta
        return value < best - self.min_delta
