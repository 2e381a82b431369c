"""The three speed-ups of one device over the CPU, never mixed up: a step, an epoch with its data, the whole job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from photofinish.comparison.intervals import LEAST_VALUES, Interval, ratio_interval, ratio_of_medians
from photofinish.hardware.load import doubts
from photofinish.results.records import Timings

Kind = Literal["step", "epoch", "end_to_end"]
NAMES: dict[Kind, str] = {
    "step": "a step, its data at hand",
    "epoch": "an epoch with its data",
    "end_to_end": "end to end, start-up included",
}
RUN_TO_RUN = 1.05
"""How much a run's times may be off as a whole, in a way that its own epochs don't tell: of one training compared with
itself 100 times on an idle machine, up to 25 were false winners without it, and at most 3 with it."""
BUSY = 2.0
"""the same where the machine had other things to do: they may have taken half of the speed, of either side"""
_MOST_SHARE_OF_ONCE = 0.5
"""of the whole job; above, an interval of the rest would claim to know what was measured once"""


@dataclass(frozen=True)
class Speedup:
    kind: Kind
    cpu_seconds: float
    device_seconds: float
    """medians, as those of the CPU"""
    ratio: float
    """of the CPU's time to the device's: 2 is half the time"""
    interval: Interval | None
    no_interval: str | None = None
    """why there is none"""

    @property
    def is_faster(self) -> bool | None:
        """None where the figures don't tell: without an interval, or with one that spans 1."""
        if self.interval is None or self.interval[0] <= 1 <= self.interval[1]:
            return None
        return self.interval[0] > 1


def speedups(cpu: Timings, device: Timings) -> tuple[Speedup, Speedup, Speedup]:
    margin = run_margin(cpu, device)
    steps = _speedup("step", cpu.steady_state.step_seconds, device.steady_state.step_seconds, "sample", margin)
    whole = _speedup("end_to_end", cpu.end_to_end_seconds, device.end_to_end_seconds, "repeat", margin)
    if whole.interval and max(_share_of_once(cpu), _share_of_once(device)) > _MOST_SHARE_OF_ONCE:
        why = "most of it is start-up, which happened once"
        whole = Speedup("end_to_end", whole.cpu_seconds, whole.device_seconds, whole.ratio, None, why)
    return steps, epoch_speedup(cpu, device), whole


def epoch_speedup(cpu: Timings, device: Timings) -> Speedup:
    return _speedup("epoch", epoch_seconds(cpu), epoch_seconds(device), "epoch", run_margin(cpu, device))


def run_margin(cpu: Timings, device: Timings) -> float:
    """By which factor the ratio of two whole runs may be off."""
    return BUSY if doubts(cpu.load) or doubts(device.load) else RUN_TO_RUN


def _speedup(kind: Kind, cpu: list[float], device: list[float], unit: str, margin: float) -> Speedup:
    """Its interval is that of the values, as they vary, and beyond it what a whole run may be off."""
    ratio, interval = ratio_of_medians(cpu, device), ratio_interval(cpu, device)
    count = min(len(cpu), len(device))
    why = None if interval else f"{count} {unit}{'s' if count > 1 else ''}, and it takes {LEAST_VALUES}"
    medians = ratio_of_medians(cpu, [1.0]), ratio_of_medians(device, [1.0])
    wider = (interval[0] / margin, interval[1] * margin) if interval else None
    return Speedup(kind, *medians, ratio, wider, why)


def epoch_seconds(timings: Timings) -> list[float]:
    return [timing.training_seconds for timing in timings.all_epochs]


def _share_of_once(timings: Timings) -> float:
    return timings.once_seconds / timings.total_seconds
