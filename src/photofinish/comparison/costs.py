"""What a training took in energy and money, and of what that is made up. Nothing is priced that has no price."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from photofinish.hardware.energy import Energy
from photofinish.params.comparing import Comparing
from photofinish.results.epochs import passed_seconds
from photofinish.results.records import DeviceLabel, Timings

_SECONDS_AN_HOUR = 3600.0
JOULES_A_KILOWATT_HOUR = 3.6e6
_COUNTED = {"gpu": "the GPU (NVML)", "cpu": "the whole CPU package (RAPL)"}


@dataclass(frozen=True)
class EnergyUsed:
    """From the first epoch's start to the last one's end; start-up is not in it."""

    joules: float | None
    status: Literal["measured", "estimated", "unavailable"]
    counted: str
    """of what it is the sum; where there is none, why"""


@dataclass(frozen=True)
class Cost:
    amount: float | None
    counted: str
    """of what it is the sum; where there is none, why"""


def energy_used(device: DeviceLabel, timings: Timings, settings: Comparing) -> EnergyUsed:
    """Measured; else by the power that the settings give for the device; else not."""
    own = next((part for part in timings.energy if part.of == device), None)
    if own and own.joules is not None:
        return _measured(own, [part for part in timings.energy if part.of != device])
    watts = settings.watts.cpu if device == "cpu" else settings.watts.gpu
    if watts is not None:
        counted = f"{watts:g} W (compare.watts.{device}) times the epochs' time"
        return EnergyUsed(watts * passed_seconds(timings.epochs), "estimated", counted)
    reason = own.reason if own and own.reason else "not recorded"
    return EnergyUsed(None, "unavailable", f"{reason}; compare.watts.{device} would give an estimate")


def cost(device: DeviceLabel, seconds: float, joules: float | None, settings: Comparing) -> Cost:
    """Of so much time on the machine, start-up included, and of so much energy where that has a price of its own."""
    prices = settings.prices
    hour_price = prices.cpu_hour if device == "cpu" else prices.gpu_hour
    amounts = {}
    if hour_price is not None:
        amounts["time"] = seconds / _SECONDS_AN_HOUR * hour_price
    if prices.kilowatt_hour is not None and joules is not None:
        amounts["energy"] = joules / JOULES_A_KILOWATT_HOUR * prices.kilowatt_hour
    unknown = ["its energy being unknown"] if prices.kilowatt_hour is not None and joules is None else []
    if not amounts:
        return Cost(None, ", ".join([f"no price of an hour (compare.prices.{device}_hour)", *unknown]))
    return Cost(sum(amounts.values()), ", ".join([" and ".join(amounts), *unknown]))


def _measured(own: Energy, others: list[Energy]) -> EnergyUsed:
    """With the CPU that fed the GPU, where that has a counter; it is told where it hasn't."""
    known = [own, *(part for part in others if part.joules is not None)]
    joules = sum(part.joules or 0.0 for part in known)
    lacking = [f"not {_COUNTED[part.of]}: {part.reason}" for part in others if part.joules is None]
    return EnergyUsed(joules, "measured", "; ".join([" and ".join(_COUNTED[part.of] for part in known), *lacking]))
