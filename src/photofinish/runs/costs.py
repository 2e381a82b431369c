"""Price of a training while it runs, and the budget that ends it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from photofinish.config.budget import BudgetPlan
from photofinish.errors import UserError
from photofinish.results.records import DeviceLabel
from photofinish.wording import money

_LEAST_SHOWN = 0.01


@dataclass(frozen=True)
class Costs:
    """Price of a device's hours, and what a training on it may cost.

    They are no part of a training's cache key, so a change of them trains nothing again.
    """

    hour_price: float = 0.0
    currency: str = ""
    budget: float | None = None

    @classmethod
    def of(cls, plan: BudgetPlan, device: DeviceLabel) -> Self:
        price = plan.cpu_hour if device == "cpu" else plan.gpu_hour
        return cls(price or 0.0, plan.currency, plan.budget)

    def so_far(self, seconds: float) -> str:
        """Return `0.42 USD so far`, or nothing below 0.01 and without a price."""
        amount = self._amount(seconds)
        return f"{money(amount, self.currency)} so far" if amount >= _LEAST_SHOWN else ""

    def reach_budget(self, seconds: float) -> bool:
        """Return True if so much time costs the budget or more."""
        return self.budget is not None and self._amount(seconds) >= self.budget

    def check(self, seconds: float, title: str, done: str) -> None:
        """Raise UserError if so much time costs the budget. A checkpoint has what is `done`."""
        if self.budget is None or not self.reach_budget(seconds):
            return
        raise UserError(
            f"{title}: stopped after {done} at {money(self._amount(seconds), self.currency)}, "
            f"since compare.budget is {money(self.budget, self.currency)}. Raise or remove "
            f"compare.budget in params.yaml and run `dvc repro` again: it goes on after {done}"
        )

    def _amount(self, seconds: float) -> float:
        return self.hour_price * seconds / 3600
