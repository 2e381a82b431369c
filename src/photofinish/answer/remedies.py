"""Changes to params.yaml, and what they are predicted to gain."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Any, NamedTuple

from photofinish.answer.step_costs import StepCosts
from photofinish.answer.times import ONCE, Interval, UncertainTime, error_of_mean
from photofinish.results.job import Job, JobSettings
from photofinish.results.measurements import LEARNS, InTurns, Learns, LoaderTimes, Tried, TriedBy

_OTHER_RUN = math.log(1.07)
"""What a whole training may gain more, or less, than steps that are tried, by hand.

With it, 50 of 55 gains of `python -m benchmarks.suggestions` lay within their predictions.
"""
_MOST_REMEDIES = 2  # that are shown
_LEAST_GAIN = 1.05
"""Smallest speed-up of a job for which a change is suggested, by hand. Two runs differ as much."""


def step_speedup(turns: InTurns) -> Interval | None:
    """Return the interval of a step's speed-up, or None from a single turn."""
    ratios = turns.ratios
    if len(ratios) < 2:
        return None
    gain = UncertainTime(statistics.geometric_mean(ratios))
    return gain.off_by(error_of_mean(ratios), _OTHER_RUN).interval


class Gain(NamedTuple):
    """Predicted speed-up of an epoch."""

    low: float = 0.0
    high: float = math.inf

    @classmethod
    def of_steps(cls, costs: StepCosts, turns: InTurns, steps: float = 1.0) -> Gain:
        """Return the gain of an epoch by steps that were tried, `steps` times as many.

        The low end keeps the time for data of an epoch, the high end that of a step. Loading that
        steps hide now bounds both.
        """
        speedup = step_speedup(turns)
        if speedup is None:
            return cls()
        low, high = speedup
        fast, slow = (
            min(1.0, costs.step_alone_seconds / share) for share in costs.epoch_share_spread
        )
        low = 1 / (1 - slow + steps * slow / low)
        high = 1 / steps / (1 - fast + fast / high)
        if not costs.input_seconds:
            return cls(low, high)
        least, most = (share / costs.input_seconds for share in costs.epoch_share_spread)
        return cls(min(low, least), min(high, most))

    @property
    def middle(self) -> float:
        return math.sqrt(self.low * self.high)

    def of_job(self, times: Job) -> Gain:
        """Return the speed-up of the whole job, of which only the epochs get faster.

        Its start-up takes another time in each run.
        """
        startup_seconds = min(times.startup_seconds, times.once_seconds)
        gains = []
        for other_seconds in UncertainTime(startup_seconds, ONCE, ONCE).interval:
            once_seconds = times.once_seconds - startup_seconds + other_seconds
            whole_seconds = once_seconds + times.passes_seconds
            gains += [whole_seconds / (once_seconds + times.passes_seconds / gain) for gain in self]
        return Gain(min(gains), max(gains))


@dataclass(frozen=True)
class Remedy:
    by: TriedBy
    settings: dict[str, Any]
    """All keys of params.yaml that change, and their values."""
    predicted: Gain
    """Speed-up of an epoch, or of the whole job in a comparison."""

    @property
    def learns(self) -> Learns:
        return LEARNS[self.by]

    def is_worth_it(self, times: Job) -> bool:
        """Return True if the job gets clearly faster, and even the low end is a gain."""
        return self.predicted.low > 1 and self.predicted.of_job(times).middle >= _LEAST_GAIN


def step_remedy(run: Job, costs: StepCosts, tried: Tried) -> Remedy:
    return to_remedy(run, costs.settings, tried, Gain.of_steps(costs, tried.turns))


def larger_batch(run: Job, costs: StepCosts) -> Remedy:
    tried, images = costs.attribution, costs.attribution.other_batch_images
    assert run.steady_state
    steps = costs.settings.batch_size / images
    turns = InTurns(base=run.steady_state, changed=tried.other_batch)
    gain = Gain.of_steps(costs, turns, steps)
    return Remedy("batch size", {f"experiments.{run.name}.batch_size": images}, gain)


def loader_remedies(run: Job) -> list[Remedy]:
    """Return the two changes of params.yaml with the highest gain, or fewer, best first."""
    loader, settings = run.loader, run.settings
    if loader is None or settings is None or settings.workers is None:
        return []
    remedies = []
    for tried in loader.tried_inputs:
        steps = max(1.0, run.samples / settings.batch_size)
        gain = _gain_of_input(run, steps, loader, settings, tried)
        remedies.append(to_remedy(run, settings, tried, gain))
    remedies = [remedy for remedy in remedies if remedy.is_worth_it(run)]
    return sorted(remedies, key=lambda remedy: -remedy.predicted.middle)[:_MOST_REMEDIES]


def _gain_of_input(
    run: Job, epoch_steps: float, loader: LoaderTimes, settings: JobSettings, tried: Tried
) -> Gain:
    """Return an epoch's gain by another input, with the starts of workers that were not tried."""
    speedup = step_speedup(tried.turns)
    if speedup is None:
        return Gain()
    changed = tried.changes.get("input", {})
    workers = 0 if changed == "resident" else changed.get("workers", settings.workers or 0)
    starts = {0: 0.0} | {tried.workers: tried.start_seconds for tried in loader.tried_workers}
    # Workers that persist start once in all epochs.
    once = 1 / run.epochs
    own_share = once if settings.persistent_workers else 1.0
    new_share = once if tried.by == "workers" else own_share
    own_seconds = own_share * starts.get(settings.workers or 0, 0.0) / epoch_steps
    new_seconds = new_share * starts.get(workers, math.inf) / epoch_steps
    step_seconds = statistics.fmean(tried.turns.base.step_seconds)
    least, most = UncertainTime(1.0, ONCE, ONCE).interval
    own_ends = (most, least) if own_seconds == new_seconds else (least, most)  # one start
    low, high = (
        (step_seconds + own_seconds * own_off) / (step_seconds / end + new_seconds * new_off)
        for end, own_off, new_off in zip(speedup, own_ends, (most, least), strict=True)
    )
    return Gain(low, high)


def to_remedy(run: Job, settings: JobSettings, tried: Tried, gain: Gain) -> Remedy:
    """Return the lines of params.yaml that change as was tried."""
    owners = {"decode": f"datasets.{settings.dataset}"}
    changes = {
        f"{owners.get(key, f'experiments.{run.name}')}.{key}": value
        for key, value in tried.changes.items()
    }
    return Remedy(tried.by, changes, gain)
