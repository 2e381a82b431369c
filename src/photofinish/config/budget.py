"""Price and budget of trainings."""

from __future__ import annotations

from photofinish.config.base import NonNegativeFloat, PositiveFloat, Settings


class BudgetPlan(Settings):
    """Price of the devices' hours, and what a training may cost: data/plan/budget.json."""

    currency: str
    cpu_hour: NonNegativeFloat | None
    gpu_hour: NonNegativeFloat | None
    budget: PositiveFloat | None
    """Most that one training on one device may cost."""
