"""Other ways to load that were tried on a job, and their gains."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

from photofinish.comparing.device_results import ScriptResult, TrainingResult
from photofinish.comparing.remedies import LEAST_GAIN, RUN_MARGIN, Gain, Remedy
from photofinish.comparing.step_costs import StepCosts, spread
from photofinish.config.experiment import LoaderInput
from photofinish.results.measurements import LoaderTimes, TriedInput

MOST_REMEDIES = 2
_LEAST_LEFT = 1e-3
"""Share of an epoch that is left at least, as parts are measured in different steps."""


EditBy = Literal["one thread", "fork", "one indexing"]


class Edit(NamedTuple):
    """Change of custom code that was tried, and its predicted gain of an epoch."""

    by: EditBy
    predicted: Gain


def _gains(run: TrainingResult, costs: StepCosts) -> list[tuple[TriedInput, Gain]]:
    """Return what was tried and is worth it, best first."""
    loader, settings = run.timings.loader, run.record.experiment.input
    if loader is None or not isinstance(settings, LoaderInput):
        return []
    gains = []
    for tried in loader.tried_inputs:
        start_seconds = _start_seconds(loader, settings, tried, run.timings.planned_epochs)
        share_seconds = start_seconds / costs.steps_per_epoch
        gain = Gain.of(costs, *(each + share_seconds for each in spread(tried.steps.step_seconds)))
        if gain.is_worth_it:
            gains.append((tried, gain))
    return sorted(gains, key=lambda gain: -gain[1].middle)


def _start_seconds(
    loader: LoaderTimes, settings: LoaderInput, tried: TriedInput, epochs: int
) -> float:
    """Return how long workers start in an epoch, or infinity if their start was not timed.

    Workers that persist start once in all epochs.
    """
    if tried.by == "fork" and loader.by_fork:
        return loader.by_fork.start_seconds
    given = tried.changes.get("input", {})
    workers = 0 if given == "resident" else given.get("workers", settings.workers)
    if not workers:
        return 0.0
    starts = {each.workers: each.start_seconds for each in loader.tried_workers}
    persists = settings.persistent_workers or tried.by == "workers"
    return starts.get(workers, math.inf) / (epochs if persists else 1)


def loader_remedies(run: TrainingResult, costs: StepCosts) -> list[Remedy]:
    """Return the two changes of params.yaml with the highest gain, or fewer, best first."""
    found = {tried.by: (tried, gain) for tried, gain in _gains(run, costs) if tried.changes}
    if "stored size" in found and "decode once" in found:
        # Another size learns something else, so it must gain more.
        gains = found["stored size"][1].middle, found["decode once"][1].middle
        del found["decode once" if gains[0] >= LEAST_GAIN * gains[1] else "stored size"]
    return [_remedy(run, *each) for each in found.values()][:MOST_REMEDIES]


def _remedy(run: TrainingResult, tried: TriedInput, gain: Gain) -> Remedy:
    dataset = f"datasets.{run.record.experiment.dataset}"
    owners = {"decode": dataset, "size": dataset}
    (key, value), *also = (
        (f"{owners.get(key, f'experiments.{run.experiment}')}.{key}", new)
        for key, new in tried.changes.items()
    )
    by: Any = "tried workers" if tried.by == "workers" else tried.by
    return Remedy(key, value, gain, by, tuple(also))


def loader_edits(run: TrainingResult | ScriptResult) -> list[Edit]:
    """Return the two changes of custom code with the highest gain, or fewer, best first."""
    loader = run.timings.loader
    if loader and loader.one_indexing_seconds is not None:
        seconds = loader.whole_seconds - loader.one_indexing_seconds
        return _one_indexing(run, seconds)
    if isinstance(run, ScriptResult) or run.costs is None:
        return []
    edits: list[Edit] = []
    for tried, gain in _gains(run, run.costs):
        if tried.by == "fork":
            edits.append(Edit("fork", gain))
        elif tried.by == "one thread":  # limiting the threads of new workers was not timed
            edits.append(Edit("one thread", Gain(1.0, gain.high)))
    return edits[:MOST_REMEDIES]


def _one_indexing(run: TrainingResult | ScriptResult, saved_seconds: float) -> list[Edit]:
    """Return the gain of steps that save so much. An epoch only saves its waiting for batches."""
    steps = run.costs.steps_per_epoch if run.costs else run.timings.steps_per_epoch or 0
    saved_share = steps * saved_seconds / run.timings.median_epoch_seconds
    middle = 1 / max(1 - min(saved_share, run.loading_share), _LEAST_LEFT)
    gain = Gain(middle / RUN_MARGIN, middle * RUN_MARGIN)
    return [Edit("one indexing", gain)] if gain.is_worth_it else []
