"""The three speed-ups of one device over the CPU, never mixed up, and how sure each is."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.stats import DegenerateDataWarning, bootstrap

from photofinish.machine.load import doubts
from photofinish.results.records import Timings

LEAST_VALUES = 5
"""on each side: with fewer, an interval that says 95 % holds the truth less often (9 times in 10 with three)"""
CONFIDENCE = 0.95
_RESAMPLES = 9999
_BATCH = 500
"""resamples held in memory at a time"""
_SEED = 0
"""so that the same figures give the same report"""

Interval = tuple[float, float]
FloatArray = NDArray[np.float64]


def ratio_of_medians(above: Sequence[float], below: Sequence[float]) -> float:
    return float(np.median(above) / np.median(below))


def ratio_interval(above: Sequence[float], below: Sequence[float]) -> Interval | None:
    """The ratio's 95 % interval: percentiles of its bootstrap. None where there are too few values to tell."""
    if min(len(above), len(below)) < LEAST_VALUES:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DegenerateDataWarning)  # values all alike: the interval is a point
        found = bootstrap(
            (np.asarray(above), np.asarray(below)),
            _ratio,
            n_resamples=_RESAMPLES,
            confidence_level=CONFIDENCE,
            method="percentile",
            vectorized=True,
            batch=_BATCH,
            rng=np.random.default_rng(_SEED),
        ).confidence_interval
    return float(found.low), float(found.high)


def drawn_medians(values: Sequence[float], random: np.random.Generator) -> FloatArray:
    """The medians of as many draws of the values, with replacement, as an interval of ours is made of."""
    own = np.asarray(values)
    batches = [min(_BATCH, _RESAMPLES - done) for done in range(0, _RESAMPLES, _BATCH)]
    return np.concatenate([np.median(random.choice(own, size=(batch, len(own))), axis=1) for batch in batches])


def percentile_interval(drawn: FloatArray) -> Interval:
    """The middle 95 % of what the draws gave, of which some may be infinite."""
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail], method="inverted_cdf")
    return float(low), float(high)


def new_draws() -> np.random.Generator:
    return np.random.default_rng(_SEED)


def _ratio(above: Any, below: Any, axis: int) -> Any:
    return np.median(above, axis=axis) / np.median(below, axis=axis)


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
