"""Terms on which `photofinish ask` considers GPUs, by its options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from photofinish.config.compare import Comparing, accelerators
from photofinish.errors import ConfigError
from photofinish.wording import unknown_name

_Settings = TypeVar("_Settings", bound=Comparing)


@dataclass(frozen=True)
class Terms:
    """Options that replace settings of the section `compare`."""

    gpus: str | None = None
    """Names of accelerators with commas between them, or `all`."""
    start_minutes: float | None = None
    hour_price: float | None = None
    """Price of each accelerator that is considered."""

    def __post_init__(self) -> None:
        for name in self._names:
            if name not in accelerators():
                problem = unknown_name("accelerator", name, list(accelerators()))
                raise ConfigError(f"--gpu {name}: {problem}")

    @property
    def _names(self) -> tuple[str, ...]:
        if self.gpus == "all":
            return tuple(accelerators())
        return () if self.gpus is None else tuple(name.strip() for name in self.gpus.split(","))

    def applied_to(self, settings: _Settings) -> _Settings:
        changes: dict[str, Any] = {"accelerators": self._names or settings.accelerators}
        if self.start_minutes is not None:
            changes["rental_minutes"] = self.start_minutes
        if self.start_minutes == 0:  # a GPU of one's own, which need not gain minutes
            changes["worth_saving"] = 0.0
        if self.hour_price is not None:
            prices = settings.prices.accelerator_hour
            prices = prices | dict.fromkeys(changes["accelerators"], self.hour_price)
            changes["prices"] = settings.prices.model_copy(update={"accelerator_hour": prices})
        return settings.model_copy(update=changes)
