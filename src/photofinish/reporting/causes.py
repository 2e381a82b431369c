"""Causes and suggestions for one job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from photofinish.answer.comparison import Comparison
from photofinish.answer.decision import Decision
from photofinish.answer.diagnosis import BUSY, Diagnosis
from photofinish.answer.remedies import Remedy
from photofinish.answer.step_costs import step_costs, step_share_seconds
from photofinish.answer.word import loads_longer_than_it_starts
from photofinish.machine.host import allowed_cores
from photofinish.reporting.say import say
from photofinish.reporting.templates import TEMPLATES
from photofinish.results.job import Job
from photofinish.results.trained import DeviceLabel
from photofinish.wording import with_article

_MOST_STALLS = 4
_MENDS = {"to": "make there", "nonzero": "keep size", "a mask": "keep size", "unique": "keep size"}


def cause(found: Diagnosis) -> str:
    """Return what a job or an epoch waits for, with times."""
    run, costs = found.run, step_costs(found.run)
    if found.cause == "start-up-bound":
        share = run.startup_seconds / run.whole_seconds
        return say(found.cause, share=share, whole=run.whole_seconds)
    if found.not_known:
        return say("why: busy") if found.not_known == BUSY else found.not_known
    if costs is None and run.waiting_share:
        batch = run.waiting_share * (step_share_seconds(run) or 0.0)
        return say("script waits", run=run, batch=batch, step=run.median_step_seconds)
    if costs is None:
        return found.cause
    if found.cause in ("copy-bound", "input-bound"):
        what, batch_seconds = "copying", costs.copying_seconds
        if found.cause == "input-bound":
            what = "the loader" if costs.settings.workers is not None else "gathering"
            batch_seconds = costs.input_seconds
        share, step = min(1.0, batch_seconds / costs.epoch_share_seconds), costs.step_alone_seconds
        return say("waits", what=say(what), share=share, batch=batch_seconds, step=step)
    if found.cause == "launch-bound":
        return say("fixed", costs=costs, run=run)
    share = 1 - costs.fixed_seconds / costs.step_alone_seconds
    if found.cause == "compute-bound":
        return say("arithmetic", share=share, threads=None)
    cores = allowed_cores(run.host.cpu) if run.host.cpu else 1
    return say("arithmetic", share=share, threads=run.host.threads or 1, cores=cores)


def bound_share(pair: Comparison) -> float:
    """Return the share that stays on the CPU: of loading, or of start-up."""
    epoch, job = pair.bounds.epoch, pair.bounds.job
    if epoch and loads_longer_than_it_starts(pair):
        return min(1.0, epoch.measured_seconds / epoch.whole_seconds)
    return min(1.0, pair.cpu.startup_seconds / job.whole_seconds)


def short_cause(pair: Comparison, device: DeviceLabel) -> str:
    """Return what takes most of a job's time, or ""."""
    diagnoses = pair.diagnoses[device]
    text = _share(diagnoses[0]) if diagnoses else ""
    return say("likely share", cause=text) if text and diagnoses[0].likely else text


def _share(found: Diagnosis) -> str:
    run, costs, cause = found.run, step_costs(found.run), found.likely or found.cause
    if cause == "start-up-bound":
        share = run.startup_seconds / run.whole_seconds
        return say("share of start-up", share=share)
    if costs is None and cause == "input-bound":
        return say("share of waiting", share=run.waiting_share)
    if costs is None or cause == "not known":
        return ""
    fixed = min(1.0, costs.fixed_seconds / costs.step_alone_seconds)
    shares = {
        "input-bound": ("share of loader", costs.input_seconds / costs.epoch_share_seconds),
        "copy-bound": ("share of copying", costs.copying_seconds / costs.epoch_share_seconds),
        "launch-bound": ("share of launching", fixed),
    }
    kind, share = shares.get(cause, ("share of arithmetic", 1 - fixed))
    return say(kind, share=min(1.0, share))


def advice(found: Diagnosis) -> str:
    """Return what to change in params.yaml, or why nothing helps."""
    if found.remedies:
        tries = zip(("try", "or try"), found.remedies, strict=False)
        return " ".join(
            say(kind, line=remedy_line(each), prediction=prediction(each, found.run))
            for kind, each in tries
        )
    why = say(f"none: {found.no_remedy}" if found.no_remedy else "cause unknown")
    return say("no suggestion", why=why)


def remedy_line(remedy: Remedy, experiment: str | None = None) -> str:
    """Return the line of params.yaml, without the experiment's name."""
    settings = {
        key.removeprefix(f"experiments.{experiment}."): value
        for key, value in remedy.settings.items()
    }
    return ", ".join(f"{key}: {_yaml(value)}" for key, value in settings.items())


def prediction(remedy: Remedy, times: Job) -> str:
    """Return the predicted gain of the whole job, and the prediction's source."""
    return say("gains", gain=remedy.predicted.of_job(times), how=how_known(remedy))


def how_known(remedy: Remedy) -> str:
    """Return how the gain is known, and what a training with the change learns."""
    own = f"by: {remedy.by}"
    return say(own if own in TEMPLATES else f"learns: {remedy.learns}")


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


def estimate_hints(pair: Comparison, decision: Decision) -> Iterator[str]:
    """Yield what would change the estimate on the GPU of the answer."""
    options = {each.accelerator.name: each for each in pair.renting.options}
    option = options.get(decision.gpu_name or "")
    if decision.is_here or option is None or option.estimate is None:
        return
    gpu, estimate = with_article(option.accelerator.name), option.estimate
    if pair.cpu.script and pair.cpu.script.compiles:
        yield say("eager estimate", gpu=gpu)
    if decision.worth.gpu and decision.worth.gpu.hides_loading:
        yield say("hidden loading", script=pair.cpu.script, gpu=gpu)
    if larger := estimate.larger_batch:
        yield say("launches" if larger.batch_size > 1 else "launches of some batch", it=larger)


def stall_lines(pair: Comparison, decision: Decision) -> Iterator[str]:
    """Yield the lines of a script at which a GPU would be waited for, if the answer names one."""
    script = pair.cpu.script
    is_slower = decision.answer == "No" and not decision.is_here
    if script is None or decision.gpu_name is None or is_slower:
        return
    for stall in script.stalls[:_MOST_STALLS]:
        mend = say(_MENDS.get(stall.what, "read back"))
        yield say("stall of a mask" if stall.what == "a mask" else "stall", stall=stall, mend=mend)
