"""Causes and suggestions for one experiment."""

from __future__ import annotations

from typing import Any

from photofinish.answer.diagnosis import LEAST_STEPS, Diagnosis, NotKnown
from photofinish.answer.remedies import Remedy
from photofinish.machine.host import allowed_cores
from photofinish.reporting.templates import say
from photofinish.wording import HIGH


def cause(found: Diagnosis) -> str:
    """Return what a job or an epoch waits for, with times."""
    run, timings, costs = found.run, found.run.timings, found.run.costs
    if found.cause == "start-up-bound":
        share = timings.startup_seconds / timings.whole_seconds
        return say(found.cause, share=share, whole=timings.whole_seconds)
    if found.not_known:
        return not_known(found.not_known)
    if run.settings is None:
        return say("script waits", run=run, step=timings.median_step_seconds)
    if costs is None:
        return found.cause
    if found.cause in ("copy-bound", "input-bound"):
        what, batch_seconds = "copying", costs.copying_seconds
        if found.cause == "input-bound":
            what = "the loader" if costs.experiment.input.name == "loader" else "gathering"
            batch_seconds = costs.input_seconds
        share, step = min(1.0, batch_seconds / costs.epoch_share_seconds), costs.step_alone_seconds
        return say("waits", what=say(what), share=share, batch=batch_seconds, step=step)
    if found.cause == "launch-bound":
        return say("fixed", costs=costs, run=run)
    share = 1 - costs.fixed_seconds / costs.step_alone_seconds
    if found.cause == "compute-bound":
        return say("arithmetic", share=share, threads=None)
    cores = allowed_cores(timings.host.cpu) if timings.host.cpu else 1
    return say("arithmetic", share=share, threads=timings.host.threads or 1, cores=cores)


def advice(found: Diagnosis) -> str:
    """Return what to change in params.yaml, or why nothing helps."""
    if found.remedy:
        first, second = (
            (remedy_line(each), prediction(each)) if each else ("", "")
            for each in (found.remedy, found.second)
        )
        values = {"second_line": second[0], "second": second[1]}
        return say("try", line=first[0], prediction=first[1], **values)
    why = say(f"none: {found.no_remedy}" if found.no_remedy else "cause unknown")
    return say("no suggestion", why=why)


def remedy_line(remedy: Remedy) -> str:
    """Return the line of params.yaml, with a key such as `optimizer.lr`."""
    return ", ".join(f"{key}: {_yaml(value)}" for key, value in remedy.settings.items())


def prediction(remedy: Remedy) -> str:
    """Return the predicted gain of an epoch, and the prediction's source."""
    gain, kind = remedy.predicted, "gains"
    if gain.low == 1:
        kind = "gains at most" if gain.high <= HIGH else "gains unknown"
    return say(kind, gain=gain, how=say(f"by: {remedy.by}"))


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
    if found.reason == "not taken apart" and found.recorded:
        return found.recorded
    apart, whole = found.apart_seconds, found.whole_seconds
    return say(f"why: {found.reason}", apart=apart, whole=whole, least=LEAST_STEPS)
