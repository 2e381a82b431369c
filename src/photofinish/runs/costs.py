"""Price of a training while it runs, and the budget or time limit that ends it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from photofinish.config.devices import BudgetPlan
from photofinish.errors import UserError
from photofinish.results import EpochTiming, passed_seconds
from photofinish.results.records import DeviceLabel
from photofinish.wording import money

_LEAST_SHOWN = 0.01
LEAST_EPOCHS = 2
"""Minimum number of epochs with a time limit, because an interval needs two."""


def epochs_in_time(
    limit_seconds: float | None, spent_seconds: float, epochs: Sequence[EpochTiming]
) -> int:
    """Return how many further epochs end before the time limit.

    Each is assumed to take the mean time of `epochs`. Once it is 0, it stays 0 for the same limit,
    because the time that is spent only grows.
    """
    if limit_seconds is None:
        return sys.maxsize
    in_time = (limit_seconds - spent_seconds) / (passed_seconds(epochs) / len(epochs))
    return max(0, int(in_time), LEAST_EPOCHS - len(epochs))


@dataclass(frozen=True)
class Costs:
    """Hourly price of a device, and the budget of a training on it.

    They are not part of a training's cache key, so changing them reruns no training.
    """

    hour_price: float = 0.0
    currency: str = ""
    budget: float | None = None

    @classmethod
    def of(cls, plan: BudgetPlan, device: DeviceLabel) -> Self:
        price = plan.cpu_hour if device == "cpu" else plan.gpu_hour
        return cls(price or 0.0, plan.currency, plan.budget)

    def so_far(self, seconds: float) -> str:
        """Return `0.42 USD so far`, or an empty text below 0.01 or without a price."""
        amount = self._amount(seconds)
        return f"{money(amount, self.currency)} so far" if amount >= _LEAST_SHOWN else ""

    def reach_budget(self, seconds: float) -> bool:
        """Return True if this time costs the budget or more."""
        return self.budget is not None and self._amount(seconds) >= self.budget

    def check(self, seconds: float, title: str, done: str) -> None:
        """Raise UserError if this time costs the budget. `done` is what the checkpoint holds."""
        if self.budget is None or not self.reach_budget(seconds):
            return
        raise UserError(
            f"{title}: stopped after {done} at {money(self._amount(seconds), self.currency)}, "
            f"since compare.budget is {money(self.budget, self.currency)}. Raise or remove "
            f"compare.budget in params.yaml and run `dvc repro` again: it goes on after {done}"
        )

    def _amount(self, seconds: float) -> float:
        return self.hour_price * seconds / 3600
