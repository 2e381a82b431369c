"""Other ways to load that were tried on a job, and their gains."""

from __future__ import annotations

import math
from typing import Any

from photofinish.answer.remedies import Gain, Remedy
from photofinish.answer.result import Result
from photofinish.answer.step_costs import StepCosts, spread
from photofinish.config.experiment import LoaderInput
from photofinish.results.measurements import LoaderTimes, TriedInput

_MOST_REMEDIES = 2


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
