"""Causes and suggestions for one experiment, as sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from photofinish.comparing.diagnosis import LEAST_STEPS, Diagnosis, NotKnown
from photofinish.comparing.remedies import Gain, Remedy
from photofinish.machine.host import allowed_cores
from photofinish.wording import HIGH, bound, counted, interval_text, seconds

IN_GRAPHS = "Steps in CUDA graphs are taken apart one by one, so these are proportions, not times"
_NO_REMEDY = {
    "start-up": "start-up happens once, so a longer training feels it less",
    "resident": "the samples are on the device already",
    "copies": "the samples don't fit into the device's memory, and copies are pinned already",
    "workers": "the samples don't fit into the device's memory, and each core has a worker",
    "small job": "the job is small, and a faster device would not help",
    "used well": "only a faster device or a smaller network would",
    "container": "raise the container's limit",
    "no gain": "nothing that was tried surely gains",
    "untried copies": "copies from pinned memory (`pin_memory`, `non_blocking`) were not tried",
    "untried workers": "more workers were not tried, and may lose more by their start",
    "untried threads": "another number of threads was not tried",
}
_REMEDIES = {
    "resident": "tried; keeps the bits",
    "batch size": "tried; changes what is learned, so compare the accuracy",
    "captured": "tried; right only if each step runs the same operations",
    "bf16": "tried; changes what is learned, so compare the accuracy",
    "tried threads": "tried; changes the last bits",
    "tried workers": "tried; keeps the bits",
    "decode once": "tried; keeps the bits",
    "resident once": "tried; keeps the bits",
    "batch transform": "tried; changes what is learned, as a batch draws once",
}


def cause(found: Diagnosis) -> str:
    """Return what a job or an epoch waits for, with times."""
    run, timings = found.run, found.run.timings
    if found.cause == "start-up-bound":
        share = timings.startup_seconds / timings.whole_seconds
        return f"start-up is {share:.0%} of the job's {seconds(timings.whole_seconds)}"
    if found.not_known:
        return not_known(found.not_known)
    if run.settings is None:
        step = seconds(timings.median_step_seconds)
        waiting = f"{run.waiting_share:.0%} of an epoch waits for batches"
        return f"{waiting}: {seconds(run.batch_seconds)} per batch, and a step takes {step}"
    costs = run.costs
    if costs is None:
        return found.cause
    step = seconds(costs.step_alone_seconds)
    if found.cause in ("copy-bound", "input-bound"):
        what, batch_seconds = "copying to the device", costs.copying_seconds
        if found.cause == "input-bound":
            loads = costs.experiment.input.name == "loader"
            what = "the loader" if loads else "gathering batches"
            batch_seconds = costs.input_seconds
        share = min(1.0, batch_seconds / costs.epoch_share_seconds)
        batch = seconds(batch_seconds)
        return f"{what} takes {share:.0%} of an epoch: {batch} per batch, and a step takes {step}"
    if found.cause == "launch-bound":
        return (
            f"{seconds(costs.fixed_seconds)} of a step's {step} do not depend on its samples: "
            f"launching operations and updating {run.parameter_count:,} weights"
        )
    computing = f"arithmetic is {1 - costs.fixed_seconds / costs.step_alone_seconds:.0%} of a step"
    if found.cause == "compute-bound":
        return computing
    cores = allowed_cores(timings.host.cpu) if timings.host.cpu else 1
    threads = counted(timings.host.threads or 1, "thread")
    return f"{computing}, with {threads} for {counted(cores, 'core')}"


def advice(found: Diagnosis) -> str:
    """Return what to change in params.yaml, or why nothing helps."""
    if found.remedy:
        tries = f"Try `{remedy_line(found.remedy)}`: {prediction(found.remedy)}."
        if found.second is None:
            return tries
        return f"{tries} Or `{remedy_line(found.second)}`: {prediction(found.second)}."
    why = _NO_REMEDY[found.no_remedy] if found.no_remedy else "the cause is not known"
    return f"No setting is suggested: {why}."


def remedy_line(remedy: Remedy) -> str:
    """Return the line of params.yaml, with a key such as `optimizer.lr`."""
    return settings_line(remedy.settings)


def settings_line(settings: Mapping[str, Any]) -> str:
    """Return settings on one line, with keys such as `optimizer.lr`."""
    return ", ".join(f"{key}: {_yaml(value)}" for key, value in settings.items())


def prediction(remedy: Remedy) -> str:
    """Return the predicted gain of an epoch, and the prediction's source."""
    return f"{gain_text(remedy.predicted)} ({_REMEDIES[remedy.by]})"


def gain_text(gain: Gain) -> str:
    """Return how much faster an epoch gets."""
    if gain.low != 1:
        return f"an epoch gets {interval_text(gain)}x faster"
    return (
        f"an epoch gets at most {bound(gain.high)} faster" if gain.high <= HIGH else "no limit here"
    )


def commands(experiment: str, remedy: Remedy) -> tuple[str, str]:
    """Return the commands that try a suggestion, with all epochs and with three.

    `++` sets an existing key of the experiment, or adds a key that it inherits.
    """
    sets = " ".join(f"-S '++{key}={_yaml(value)}'" for key, value in remedy.settings.items())
    command = f"dvc exp run --temp {sets}"
    return command, f"{command} -S '++experiments.{experiment}.epochs=3'"


def _yaml(value: Any) -> str:
    """Return a value on one line, in the syntax of params.yaml and `dvc exp run -S`."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_yaml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return f'"{value}"' if value in ("on", "off") else str(value)  # booleans to some readers


def not_known(found: NotKnown) -> str:
    """Return why the figures show neither cause nor bound."""
    apart, whole = seconds(found.apart_seconds), seconds(found.whole_seconds)
    return {
        "not taken apart": found.recorded or "no step was taken apart",
        "busy": "the machine was busy",
        "few steps": f"it trained fewer than {LEAST_STEPS} steps",
        "training": f"an epoch takes {apart} when measured, and took {whole} in the training",
        "epoch": f"its steps take {apart} when taken apart, and an epoch took {whole}",
        "step": f"a step takes {apart} when taken apart, and {whole} repeated on one batch",
    }[found.reason]
