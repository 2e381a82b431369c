"""Other settings of the input that were tried on a job, and their gains."""

from __future__ import annotations

from photofinish.comparing.device_results import TrainingResult
from photofinish.comparing.remedies import Gain, Remedy
from photofinish.comparing.step_costs import StepCosts, spread
from photofinish.config.experiment import LoaderInput
from photofinish.results.measurements import LoaderTimes, TriedInput

MOST_REMEDIES = 2


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
    remedies.sort(key=lambda remedy: -remedy.predicted.middle if remedy.predicted else 0.0)
    return remedies[:MOST_REMEDIES]


def _start_seconds(loader: LoaderTimes, tried: TriedInput) -> float:
    """Return the time that the tried workers take to start in each epoch."""
    starts = {each.workers: each.start_seconds for each in loader.tried_workers}
    return 0.0 if tried.persistent_workers else starts.get(tried.workers, 0.0)


def _remedy(run: TrainingResult, settings: LoaderInput, tried: TriedInput, gain: Gain) -> Remedy:
    experiment, value = f"experiments.{run.experiment}", settings.model_dump(exclude_defaults=True)
    if tried.by == "decode once":
        key = f"datasets.{run.record.experiment.dataset}.decode"
        return Remedy(key, "once", gain, "decode once")
    if tried.by == "workers":
        value |= {"workers": tried.workers}
        if tried.persistent_workers:
            value |= {"persistent_workers": True}
        return Remedy(f"{experiment}.input", value, gain, "tried workers")
    also = ((f"{experiment}.batch_transform", value["transform"]),)
    # `dvc exp run -S` merges mappings, so a key that is left out would keep its value.
    without = value | {"transform": None}
    return Remedy(f"{experiment}.input", without, gain, "batch transform", also)
