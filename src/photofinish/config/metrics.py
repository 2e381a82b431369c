"""Settings of the metrics that `evaluate` adds, and of early stopping."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator

from photofinish.config.base import (
    CustomCode,
    NonNegativeFloat,
    PositiveInt,
    Settings,
    spelled_out,
)
from photofinish.custom.reference import CodeReference, is_reference
from photofinish.errors import SettingError

TORCHMETRICS = "torchmetrics.functional"


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
        given = (self.model_extra or {}).get("as")
        return str(given or self.reference.name.rpartition(".")[2])


def _metric_reference(name: str) -> CodeReference:
    return CodeReference.of(name if is_reference(name) else f"{TORCHMETRICS}:{name}")


_MLFLOW_NAME = re.compile(r"[\w./ -]+")


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
        if best is None:
            return True
        if self.mode == "max":
            return value > best + self.min_delta
        return value < best - self.min_delta
