"""Early end of a training: the value that must improve, and how."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from photofinish.config.base import NonNegativeFloat, PositiveInt, Settings
from photofinish.errors import SettingError

MONITORED: dict[str, Literal["min", "max"]] = {
    "validation_loss": "min",
    "validation_accuracy": "max",
}
"""Values that early stopping may follow without a metric, with the direction of improvement."""


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
