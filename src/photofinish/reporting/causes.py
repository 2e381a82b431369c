"""Causes and suggestions for one job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from photofinish.answer.record import BUSY, JobRecord, KnownCause, Remedy, RunRecord
from photofinish.reporting.say import say
from photofinish.reporting.templates import TEMPLATES
from photofinish.wording import with_article

_MOST_STALLS = 4
_MENDS = {"to": "make there", "nonzero": "keep size", "a mask": "keep size", "unique": "keep size"}


def cause(run: RunRecord, found: KnownCause) -> str:
    """Return what a job or an epoch waits for, with times."""
    if found.cause == "start-up-bound":
        return say(found.cause, share=found.share, whole=run.whole_seconds)
    if found.not_known:
        return say("why: busy") if found.not_known == BUSY else found.not_known
    if not found.is_apart:
        return say("script waits", found=found) if found.share else found.cause
    if found.cause in ("copy-bound", "input-bound"):
        what = "copying"
        if found.cause == "input-bound":
            what = "the loader" if found.has_loader else "gathering"
        return say("waits", what=say(what), found=found)
    if found.cause == "launch-bound":
        return say("fixed", found=found, run=run)
    if found.cause == "compute-bound":
        return say("arithmetic", share=found.share, threads=None)
    return say("arithmetic", share=found.share, threads=run.threads, cores=run.cores)


def short_cause(run: RunRecord) -> str:
    """Return what takes most of a job's time, or ""."""
    text = _share(run.causes[0]) if run.causes else ""
    return say("likely share", cause=text) if text and run.causes[0].likely else text


def _share(found: KnownCause) -> str:
    kind = found.likely or found.cause
    if kind == "start-up-bound":
        return say("share of start-up", share=found.share)
    if (not found.is_apart and kind != "input-bound") or kind == "not known":
        return ""
    kinds = {
        "input-bound": "share of loader" if found.is_apart else "share of waiting",
        "copy-bound": "share of copying",
        "launch-bound": "share of launching",
    }
    return say(kinds.get(kind, "share of arithmetic"), share=found.share)


def advice(found: KnownCause) -> str:
    """Return what to change in params.yaml, or why nothing helps."""
    if found.remedies:
        tries = zip(("try", "or try"), found.remedies, strict=False)
        return " ".join(
            say(kind, line=remedy_line(each), prediction=prediction(each)) for kind, each in tries
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


def prediction(remedy: Remedy) -> str:
    """Return the predicted gain of the whole job, and the prediction's source."""
    return say("gains", gain=remedy.predicted, how=how_known(remedy))


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


def estimate_hints(job: JobRecord) -> Iterator[str]:
    """Yield what would change the estimate on the GPU of the answer."""
    options = {each.accelerator.name: each for each in job.options}
    option, worth = options.get(job.decision.gpu_name or ""), job.decision.worth
    if job.decision.is_here or option is None or option.estimate is None:
        return
    gpu = with_article(option.accelerator.name)
    if job.cpu.script and job.cpu.script.compiles:
        yield say("eager estimate", gpu=gpu)
    if worth.gpu and worth.gpu.hides_loading:
        yield say("hidden loading", script=job.cpu.script, gpu=gpu)
    if larger := option.estimate.larger_batch:
        yield say("launches" if larger.batch_size > 1 else "launches of some batch", it=larger)


def slow_gpu_lines(job: JobRecord) -> Iterator[str]:
    """Yield that a step takes much longer on the GPU here than on its data sheet, and why."""
    if job.slow_gpu:
        yield say("slow GPU", it=job.slow_gpu, why=say(f"slow GPU: {job.slow_gpu.cause}"))


def stall_lines(job: JobRecord) -> Iterator[str]:
    """Yield the lines of a script at which a GPU would be waited for, if the answer names one."""
    script, decision = job.cpu.script, job.decision
    is_slower = decision.answer == "No" and not decision.is_here
    if script is None or decision.gpu_name is None or is_slower:
        return
    for stall in script.stalls[:_MOST_STALLS]:
        mend = say(_MENDS.get(stall.what, "read back"))
        yield say("stall of a mask" if stall.what == "a mask" else "stall", stall=stall, mend=mend)
