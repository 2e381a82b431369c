"""Causes and suggestions for one job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from photofinish.answer.record import BUSY, DeviceLabel, Diagnosis, Job, JobRecord, Remedy
from photofinish.machine.host import allowed_cores
from photofinish.reporting.say import say
from photofinish.reporting.templates import TEMPLATES
from photofinish.wording import with_article

_MOST_STALLS = 4
_FIXES = {
    "to": "make there", "cuda": "make there",
    "nonzero": "keep size", "a mask": "keep size", "unique": "keep size",
}  # fmt: skip


def reason(run: Job, it: Diagnosis) -> str:
    if it.cause == "start-up-bound":
        return say(it.cause, share=it.share, whole=run.whole_seconds)
    if it.not_known:
        return say("why: busy") if it.not_known == BUSY else it.not_known
    if not it.is_apart:
        return say("script waits", it=it) if it.share else it.cause
    if it.cause in ("copy-bound", "input-bound"):
        what = "copying"
        if it.cause == "input-bound":
            what = "the loader" if it.has_loader else "gathering"
        return say("waits", what=say(what), it=it)
    if it.cause == "launch-bound":
        return say("fixed", it=it, run=run)
    if it.cause == "compute-bound":
        return say("arithmetic", share=it.share, threads=None)
    cores = allowed_cores(run.host.cpu) if run.host.cpu else 1
    return say("arithmetic", share=it.share, threads=run.host.threads or 1, cores=cores)


def short_cause(job: JobRecord, device: DeviceLabel) -> str:
    """Return what takes most of a job's time on a device, or ""."""
    causes = job.causes[device]
    text = _share(causes[0]) if causes else ""
    return say("likely share", cause=text) if text and causes[0].likely else text


def _share(diagnosis: Diagnosis) -> str:
    kind = diagnosis.likely or diagnosis.cause
    if kind == "start-up-bound":
        return say("share of start-up", share=diagnosis.share)
    if (not diagnosis.is_apart and kind != "input-bound") or kind == "not known":
        return ""
    kinds = {
        "input-bound": "share of loader" if diagnosis.is_apart else "share of waiting",
        "copy-bound": "share of copying",
        "launch-bound": "share of launching",
    }
    return say(kinds.get(kind, "share of arithmetic"), share=diagnosis.share)


def advice(diagnosis: Diagnosis) -> str:
    if diagnosis.remedies:
        return " ".join(
            say(kind, line=remedy_line(remedy), prediction=prediction(remedy))
            for kind, remedy in zip(("try", "or try"), diagnosis.remedies, strict=False)
        )
    why = say(f"none: {diagnosis.no_remedy}" if diagnosis.no_remedy else "cause unknown")
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
    options = {option.accelerator.name: option for option in job.options}
    option, worth = options.get(job.worth.gpu_name or ""), job.worth
    if worth.is_here or option is None or option.estimate is None:
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
    """Yield the lines at which a script would wait for the answer's GPU."""
    script, worth = job.cpu.script, job.worth
    is_slower = worth.answer == "No" and not worth.is_here
    if script is None or worth.gpu is None or is_slower:
        return
    for stall in script.stalls[:_MOST_STALLS]:
        fix = say(_FIXES.get(stall.what, "read back"))
        yield say("stall of a mask" if stall.what == "a mask" else "stall", stall=stall, fix=fix)
