"""The three speed-ups of the GPU over the CPU, never mixed up, and how sure each is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from photofinish.machine.load import doubts
from photofinish.results.records import Timings

Kind = Literal["step", "epoch", "end_to_end"]
NAMES: dict[Kind, str] = {
    "step": "a step, its data at hand",
    "epoch": "an epoch with its data",
    "end_to_end": "end to end, start-up included",
}
LEAST_VALUES = 5
"""on each side: with fewer, an interval that says 95 % holds the truth less often (9 times in 10 with three)"""
CONFIDENCE = 0.95
RUN_TO_RUN = 1.05
"""How much a run's times may be off as a whole, in a way that its own epochs don't tell: of one training compared with
itself 100 times on an idle machine, up to 25 were false winners without it, and at most 3 with it."""
BUSY = 2.0
"""the same where the machine had other things to do: they may have taken half of the speed, of either side"""
_MOST_SHARE_OF_ONCE = 0.5
"""of the whole job; above, an interval of the rest would claim to know what was measured once"""
_RESAMPLES = 9999
_STUDENTS_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip

Interval = tuple[float, float]
FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Speedup:
    """How many times the CPU's speed, by the medians of both."""

    kind: Kind
    cpu_seconds: float
    device_seconds: float
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


def speedups(cpu: Timings, device: Timings) -> dict[Kind, Speedup]:
    """All three, in their order."""
    margin = run_margin(cpu, device)
    step = _speedup("step", cpu.steady_state.step_seconds, device.steady_state.step_seconds, "sample", margin)
    whole = _speedup("end_to_end", cpu.end_to_end_seconds, device.end_to_end_seconds, "repeat", margin)
    if whole.interval and any(side.once_seconds > _MOST_SHARE_OF_ONCE * side.total_seconds for side in (cpu, device)):
        whole = replace(whole, interval=None, no_interval="most of it is start-up, which happened once")
    return {"step": step, "epoch": epoch_speedup(cpu, device), "end_to_end": whole}


def epoch_speedup(cpu: Timings, device: Timings) -> Speedup:
    """Of an epoch with its data alone."""
    return _speedup("epoch", epoch_seconds(cpu), epoch_seconds(device), "epoch", run_margin(cpu, device))


def run_margin(cpu: Timings, device: Timings) -> float:
    """By which factor the ratio of two whole runs may be off."""
    return BUSY if doubts(cpu.load) or doubts(device.load) else RUN_TO_RUN


def epoch_seconds(timings: Timings) -> list[float]:
    """The training time of every epoch, of all repeats."""
    return [timing.training_seconds for timing in timings.all_epochs]


def ratio_interval(above: Sequence[float], below: Sequence[float]) -> Interval | None:
    """Of the ratio of medians, 95 %: percentiles of its bootstrap. None where there are too few values to tell."""
    if min(len(above), len(below)) < LEAST_VALUES:
        return None
    return percentile_interval(drawn_medians(above, 0) / drawn_medians(below, 1))


def students_t(freedom: int) -> float:
    """Between which, on both sides of 0, 95 % lie; of more than 30 degrees of freedom it is a little too wide."""
    return _STUDENTS_T[min(freedom, len(_STUDENTS_T)) - 1]


def drawn_medians(values: Sequence[float], seed: int) -> FloatArray:
    """The medians of as many draws of the values, with replacement, as an interval of ours is made of.

    The same seed and as many values give the same draws: what is held against each other takes another seed each.
    """
    lower, upper = np.sort(np.asarray(values, dtype=np.float64))[_middle_places(len(values), seed, _RESAMPLES)]
    medians: FloatArray = (lower + upper) / 2
    return medians


@lru_cache(maxsize=128)
def _middle_places(count: int, seed: int, resamples: int) -> NDArray[np.intp]:
    """The two middle ones of each draw of so many values, by their places in order: one twice where the count is odd.

    A draw is `count` random numbers between 0 and 1, each of which falls on one of as many values. The middle ones are
    beta variables, drawn as such: a draw costs the same however many values it has.
    """
    random, before = np.random.default_rng(seed), (count - 1) // 2
    middle = random.beta(before + 1, count - before, resamples)
    after = middle if count % 2 else middle + (1 - middle) * random.beta(1, count - before - 1, resamples)
    return np.minimum(count * np.stack([middle, after]), count - 1).astype(np.intp)


def percentile_interval(drawn: FloatArray) -> Interval:
    """The middle 95 % of what the draws gave, of which some may be infinite."""
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail], method="inverted_cdf")
    return float(low), float(high)


def _speedup(kind: Kind, cpu: list[float], device: list[float], unit: str, margin: float) -> Speedup:
    """Its interval is that of the values, as they vary, and beyond it what a whole run may be off."""
    cpu_seconds, device_seconds = float(np.median(cpu)), float(np.median(device))
    found, count = ratio_interval(cpu, device), min(len(cpu), len(device))
    interval = (found[0] / margin, found[1] * margin) if found else None
    why = None if found else f"{count} {unit}{'s' if count > 1 else ''}, and it takes {LEAST_VALUES}"
    return Speedup(kind, cpu_seconds, device_seconds, cpu_seconds / device_seconds, interval, why)
