"""Changes to params.yaml, and what they are predicted to gain."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from photofinish.answer.result import Result
from photofinish.answer.step_costs import StepCosts, spread
from photofinish.config.experiment import LoaderInput
from photofinish.results.job_times import JobTimes
from photofinish.results.measurements import LoaderTimes, SteadyState, TriedInput

RUN_MARGIN = 1.2
"""Margin at both ends of a prediction, for differences between two runs.

Tested on two quiet cores: 47 of 52 predictions were right. With a margin of 1.1, only 9 of 12 were.
"""


_MOST_REMEDIES = 2


class Gain(NamedTuple):
    """Predicted speed-up of an epoch."""

    low: float
    high: float

    @classmethod
    def of(cls, costs: StepCosts, low_seconds: float, high_seconds: float) -> Gain:
        """Return the gain if a step with its data takes `low_seconds` to `high_seconds`."""
        fast_seconds, slow_seconds = costs.epoch_share_spread
        low = fast_seconds / high_seconds / RUN_MARGIN
        return cls(low, slow_seconds / low_seconds * RUN_MARGIN)

    @classmethod
    def of_steps(cls, costs: StepCosts, tried: SteadyState) -> Gain:
        """Return the gain if steps are as fast as tried ones, with an unchanged time for data."""
        data_seconds = costs.beside_step_seconds
        return cls.of(costs, *(each + data_seconds for each in spread(tried.step_seconds)))

    @property
    def middle(self) -> float:
        return math.sqrt(self.low * self.high)

    def of_job(self, times: JobTimes) -> Gain:
        """Return the speed-up of the whole job, of which only the epochs get faster."""
        share = times.passes_seconds / times.whole_seconds
        return Gain(*(1 / (1 - share + share / gain) for gain in self))

    @property
    def is_worth_it(self) -> bool:
        """True if even the low end is a gain. A change that was not tried may lose."""
        return self.low > 1


@dataclass(frozen=True)
class Remedy:
    key: str
    value: Any
    predicted: Gain
    by: Literal[
        "resident", "batch size", "captured", "bf16", "tf32", "free algorithms", "tried threads",
        "tried workers", "decode once", "resident once", "batch transform",
    ]  # fmt: skip
    also: tuple[tuple[str, Any], ...] = ()
    """Other keys that must change too, with their values."""

    @property
    def changes_model(self) -> bool:
        """Return True if a training with the change learns something else, or may do so."""
        return self.by in ("batch size", "captured", "bf16", "tf32", "batch transform")

    @property
    def settings(self) -> dict[str, Any]:
        """Return all keys of params.yaml that change, and their values."""
        return {self.key: self.value, **dict(self.also)}


def loader_remedies(run: Result, costs: StepCosts) -> list[Remedy]:
    """Return the two changes of params.yaml with the highest gain, or fewer, best first."""
    loader, settings = run.timings.loader, costs.experiment.input
    if loader is None or not isinstance(settings, LoaderInput):
        return []
    remedies = []
    for tried in loader.tried_inputs:
        start_seconds = _start_seconds(loader, settings, tried, run.timings.planned_epochs)
        share_seconds = start_seconds / costs.steps_per_epoch
        gain = Gain.of(costs, *(each + share_seconds for each in spread(tried.steps.step_seconds)))
        if gain.is_worth_it:
            remedies.append(_remedy(run, costs, tried, gain))
    return sorted(remedies, key=lambda remedy: -remedy.predicted.middle)[:_MOST_REMEDIES]


def _start_seconds(
    loader: LoaderTimes, settings: LoaderInput, tried: TriedInput, epochs: float
) -> float:
    """Return how long workers start in an epoch, or infinity if their start was not timed.

    Workers that persist start once in all epochs.
    """
    given = tried.changes.get("input", {})
    workers = 0 if given == "resident" else given.get("workers", settings.workers)
    if not workers:
        return 0.0
    starts = {each.workers: each.start_seconds for each in loader.tried_workers}
    persists = settings.persistent_workers or tried.by == "workers"
    return starts.get(workers, math.inf) / (epochs if persists else 1)


def _remedy(run: Result, costs: StepCosts, tried: TriedInput, gain: Gain) -> Remedy:
    dataset = f"datasets.{costs.experiment.dataset}"
    owners = {"decode": dataset}
    (key, value), *also = (
        (f"{owners.get(key, f'experiments.{run.experiment}')}.{key}", new)
        for key, new in tried.changes.items()
    )
    by: Any = "tried workers" if tried.by == "workers" else tried.by
    return Remedy(key, value, gain, by, tuple(also))
