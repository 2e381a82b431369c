"""Other ways to load that were tried on a job, and their gains."""

from __future__ import annotations

from typing import Literal, NamedTuple

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


def loader_remedies(run: TrainingResult, costs: StepCosts) -> list[Remedy]:
    """Return the two changes with the highest gain, or fewer, best first."""
    loader, settings = run.timings.loader, run.record.experiment.input
    if loader is None or not isinstance(settings, LoaderInput):
        return []
    remedies = []
    for tried in loader.tried_inputs:
        low_seconds, high_seconds = spread(tried.steps.step_seconds)
        start_seconds = _start_seconds(loader, tried) / costs.steps_per_epoch
        gain = Gain.of(costs, low_seconds + start_seconds, high_seconds + start_seconds)
        if gain.is_worth_it:
            remedies.append(_remedy(run, settings, tried, gain))
    remedies.sort(key=lambda remedy: -_middle(remedy))
    stored = [each for each in remedies if each.by in ("decode once", "stored size")]
    if len(stored) > 1:  # another size learns something else, so it must gain more
        is_clear = _middle(stored[0]) >= LEAST_GAIN * _middle(stored[1])
        remedies.remove(stored[1] if is_clear or stored[0].by == "decode once" else stored[0])
    return remedies[:MOST_REMEDIES]


def _middle(remedy: Remedy) -> float:
    return remedy.predicted.middle if remedy.predicted else 1.0


def _start_seconds(loader: LoaderTimes, tried: TriedInput) -> float:
    """Return the time that the tried workers take to start in each epoch."""
    starts = {each.workers: each.start_seconds for each in loader.tried_workers}
    return 0.0 if tried.persistent_workers else starts.get(tried.workers, 0.0)


def _remedy(run: TrainingResult, settings: LoaderInput, tried: TriedInput, gain: Gain) -> Remedy:
    by, value = tried.by, settings.model_dump(exclude_defaults=True)
    decode = f"datasets.{run.record.experiment.dataset}.decode"
    given = f"experiments.{run.experiment}.input"
    if by == "decode once":
        return Remedy(decode, "once", gain, by)
    if by == "resident once":
        return Remedy(decode, "once", gain, by, ((given, "resident"),))
    if by == "stored size":
        size = f"datasets.{run.record.experiment.dataset}.size", list(tried.size or ())
        return Remedy(decode, "once", gain, by, (size,))
    if by == "byte batches":
        return Remedy(given, value | {"byte_batches": True}, gain, by)
    if by == "workers":
        value |= {"workers": tried.workers}
        if tried.persistent_workers:
            value |= {"persistent_workers": True}
        return Remedy(given, value, gain, "tried workers")
    also = ((f"experiments.{run.experiment}.batch_transform", value["transform"]),)
    # `dvc exp run -S` merges mappings, so a key that is left out would keep its value.
    return Remedy(given, value | {"transform": None}, gain, by, also)


def loader_edits(run: TrainingResult | ScriptResult) -> list[Edit]:
    """Return the two changes of custom code with the highest gain, or fewer, best first.

    An epoch can only save the time in which it waits for batches.
    """
    loader, epoch_seconds = run.timings.loader, run.timings.median_epoch_seconds
    if loader is None:
        return []
    steps = run.costs.steps_per_epoch if run.costs else run.timings.steps_per_epoch or 0
    saved_seconds: dict[EditBy, float] = {}
    if loader.with_one_thread and (crowded := loader.crowded_workers):
        seconds = crowded.batch_seconds - loader.with_one_thread.batch_seconds
        saved_seconds["one thread"] = steps * seconds
    for own in loader.tried_workers:
        if loader.by_fork and own.workers == loader.by_fork.workers:
            saved_seconds["fork"] = own.start_seconds - loader.by_fork.start_seconds
    if loader.one_indexing_seconds is not None:
        seconds = loader.whole_seconds - loader.one_indexing_seconds
        saved_seconds["one indexing"] = steps * seconds
    edits = []
    for by, seconds in saved_seconds.items():
        left_seconds = epoch_seconds - min(seconds, run.loading_share * epoch_seconds)
        gain = epoch_seconds / max(left_seconds, _LEAST_LEFT * epoch_seconds)
        if gain >= LEAST_GAIN:
            edits.append(Edit(by, Gain(gain / RUN_MARGIN, gain * RUN_MARGIN)))
    return sorted(edits, key=lambda edit: -edit.predicted.middle)[:MOST_REMEDIES]
