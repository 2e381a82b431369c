"""Price, budget and time limits of trainings."""

from __future__ import annotations

from pydantic import Field

from photofinish.config.base import Name, NonNegativeFloat, PositiveFloat, Settings


class BudgetPlan(Settings):
    """Hourly prices of the devices, and limits of each training: data/plan/budget.json."""

    currency: str
    cpu_hour: NonNegativeFloat | None
    gpu_hour: NonNegativeFloat | None
    budget: PositiveFloat | None
    """Maximum price of one training on one device."""
    cpu_seconds: dict[Name, PositiveFloat] = Field(default_factory=dict)
    """Time limits on the CPU, by experiment."""
