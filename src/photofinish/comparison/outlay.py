"""What one training took in all, and until it was good enough: time, energy, money."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from photofinish.comparison.costs import Cost, EnergyUsed, cost, energy_used
from photofinish.comparison.payback import TimeToTarget, time_to_target
from photofinish.params.comparing import Comparing
from photofinish.results.records import DeviceLabel, Timings


@dataclass(frozen=True)
class Outlay:
    energy: EnergyUsed
    cost: Cost
    target: TimeToTarget | None
    """None where the settings name none"""
    joules_to_target: float | None
    """the epochs' share of the energy by their share of the time"""
    cost_to_target: Cost | None
    currency: str

    @property
    def columns(self) -> dict[str, object]:
        """As the table has it."""
        energy, cost, target = self.energy, self.cost, self.target
        found: dict[str, object] = {
            "energy_joules": energy.joules,
            "energy_status": energy.status,
            "energy_counted": energy.counted,
            "cost": cost.amount,
            "cost_currency": None if cost.amount is None else self.currency,
            "cost_counted": cost.counted,
            "target_energy_joules": self.joules_to_target,
            "target_cost": self.cost_to_target.amount if self.cost_to_target else None,
        }
        if target:
            found |= {"target_accuracy": target.target, "target_epoch": target.epoch, "target_seconds": target.seconds}
        return found


def outlay(device: DeviceLabel, timings: Timings, history: pd.DataFrame, settings: Comparing) -> Outlay:
    energy, currency = energy_used(device, timings, settings), settings.prices.currency
    whole = cost(device, timings.total_seconds, energy.joules, settings)
    if settings.target_accuracy is None:
        return Outlay(energy, whole, None, None, None, currency)
    target = time_to_target(timings, history, settings.target_accuracy)
    if target.seconds is None or target.share is None:
        return Outlay(energy, whole, target, None, None, currency)
    joules = None if energy.joules is None else energy.joules * target.share
    return Outlay(energy, whole, target, joules, cost(device, target.seconds, joules, settings), currency)
