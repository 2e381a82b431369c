"""Causes of a job's and an epoch's time, with changes to params.yaml that help.

An epoch waits for the slower of two: loading without steps, and steps with their batch on the
device. A step's time is mostly fixed, or mostly grows with its samples.

The cause is unknown on a busy machine, and if no steps were taken apart. A change is suggested if
the measured steps were certainly faster with it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from photofinish.answer.fair_cpu import fewer_threads
from photofinish.answer.remedies import Gain, Remedy, larger_batch, loader_remedies, step_remedy
from photofinish.answer.step_costs import EpochStep, StepCosts, epoch_step
from photofinish.machine.fingerprint import CpuTarget
from photofinish.machine.host import allowed_cores
from photofinish.results.job import Job

Cause = Literal[
    "input-bound", "copy-bound", "launch-bound", "compute-bound", "start-up-bound",
    "CPU held back", "not known",
]  # fmt: skip
BUSY = "busy"
MOST_STARTUP_SHARE = 0.5
"""Share of a job, by hand, above which start-up is its main cause: more than all else together."""
MOST_FIXED_SHARE = 0.5
"""Share of a step, by hand, above which its fixed time is the cause: more than its samples take."""
_BF16_GAIN = 1.2
"""Factor, by hand, by which bf16 must gain more than a change that alters the model less."""

NoRemedy = Literal[
    "start-up", "resident", "copies", "workers", "small job", "used well", "container", "no gain",
    "untried copies", "untried workers", "untried threads",
]  # fmt: skip


@dataclass(frozen=True)
class Diagnosis:
    of: Literal["the job", "an epoch"]
    cause: Cause
    remedies: tuple[Remedy, ...] = ()
    """Changes that were tried, the best one first."""
    no_remedy: NoRemedy | None = None
    not_known: str | None = None
    """Reason why the cause is not known: BUSY, or the measurement's own."""
    likely: Cause | None = None
    """Likely cause, from figures that are too unreliable for a remedy (on a busy machine)."""
    share: float = 0.0
    """Share of the job, of an epoch or of a step that it takes."""
    seconds: float = 0.0
    """Time of that share of an epoch or step."""
    step_seconds: float = 0.0
    is_apart: bool = False
    """True if steps were taken apart."""
    has_loader: bool = False
    """True if a loader brings their batches."""


def diagnose(run: Job) -> tuple[Diagnosis, ...]:
    """Return the diagnosis of the job, if it is mostly start-up, then the diagnosis of an epoch."""
    diagnoses, step = [], epoch_step(run)
    if run.startup_seconds > MOST_STARTUP_SHARE * run.whole_seconds:
        diagnoses.append(Diagnosis("the job", "start-up-bound", no_remedy="start-up"))
    epoch = _diagnose_epoch(run, step.costs) if step.costs else _diagnose_waits(run)
    if epoch:
        diagnoses.append(epoch)
    return tuple(_with_share(run, step, diagnosis) for diagnosis in diagnoses)


def causes_in_job(run: Job) -> tuple[Diagnosis, ...]:
    """Return the diagnoses of a job, with the gains of the whole job instead of an epoch."""
    causes = []
    for cause in diagnose(run):
        remedies = (
            replace(remedy, predicted=remedy.predicted.of_job(run)) for remedy in cause.remedies
        )
        causes.append(replace(cause, remedies=tuple(remedies)))
    return tuple(causes)


def _with_share(run: Job, step: EpochStep, diagnosis: Diagnosis) -> Diagnosis:
    costs, kind = step.costs, diagnosis.likely or diagnosis.cause
    share, seconds, step_seconds = run.waiting_share, 0.0, 0.0
    if kind == "start-up-bound":
        share = run.startup_seconds / run.whole_seconds
    elif costs is None and share:
        seconds = share * (step.seconds or 0.0)
        step_seconds = run.median_step_seconds
    elif costs and kind in ("input-bound", "copy-bound"):
        seconds = costs.input_seconds if kind == "input-bound" else costs.copying_seconds
        share = seconds / costs.epoch_share_seconds
        step_seconds = costs.step_alone_seconds
    elif costs:
        seconds, step_seconds = costs.fixed_seconds, costs.step_alone_seconds
        share = seconds / step_seconds if kind == "launch-bound" else 1 - seconds / step_seconds
    return replace(
        diagnosis,
        share=min(1.0, share),
        seconds=seconds,
        step_seconds=step_seconds,
        is_apart=costs is not None,
        has_loader=costs is not None and costs.settings.workers is not None,
    )


def _diagnose_waits(run: Job) -> Diagnosis | None:
    """Return a diagnosis of steps without parts, or None if nothing is known of them."""
    waits = run.has_steps and run.waiting_share > 0.5
    if waits and not run.step_warnings:
        remedies = loader_remedies(run) if run.settings else []
        has_tried = run.loader and run.loader.tried_inputs
        return Diagnosis(
            "an epoch", "input-bound", tuple(remedies), "no gain" if has_tried else None
        )
    likely: Cause | None = "input-bound" if waits else None
    why = BUSY if waits else run.not_attributed
    return Diagnosis("an epoch", "not known", not_known=why, likely=likely) if why else None


def _diagnose_epoch(run: Job, costs: StepCosts) -> Diagnosis:
    cause, remedy = _cause(run, costs)
    if run.step_warnings:
        return Diagnosis("an epoch", "not known", not_known=BUSY, likely=cause)
    fewer = fewer_threads(run)
    if fewer and costs.input_seconds <= costs.step_alone_seconds:
        gain = Gain.of_steps(costs, fewer.turns)
        remedy = Remedy("threads", {"devices.cpu.threads": fewer.threads}, gain)
    if isinstance(remedy, Remedy):
        if remedy.is_worth_it(run):
            return Diagnosis("an epoch", cause, (remedy,))
        remedy = "no gain"
    if tried := loader_remedies(run):
        return Diagnosis("an epoch", cause, tuple(tried))
    loader = run.loader
    by_loader = "copies", "workers", "untried copies", "untried workers"
    if remedy in by_loader and loader and loader.tried_inputs:
        remedy = "no gain"
    return Diagnosis("an epoch", cause, no_remedy=remedy)


def _cause(run: Job, costs: StepCosts) -> tuple[Cause, Remedy | NoRemedy]:
    host = run.host
    cores = allowed_cores(host.cpu) if host.cpu else 1
    if costs.input_seconds > costs.step_alone_seconds:
        is_copy = costs.copying_seconds > costs.loading_seconds
        cause: Literal["copy-bound", "input-bound"] = "copy-bound" if is_copy else "input-bound"
        return cause, _against_input(costs, cores, cause)
    if costs.fixed_seconds > MOST_FIXED_SHARE * costs.step_alone_seconds:
        return "launch-bound", _against_launching(run, costs)
    if isinstance(host, CpuTarget) and host.threads != cores:
        return "CPU held back", "untried threads"
    if isinstance(host, CpuTarget) and cores < host.cpu.usable_cores:
        return "CPU held back", "container"
    return "compute-bound", _against_computing(run, costs)


def _against_input(
    costs: StepCosts, cores: int, cause: Literal["copy-bound", "input-bound"]
) -> NoRemedy:
    settings = costs.settings
    if settings.workers is None:
        return "resident"
    if cause == "copy-bound":
        return "copies" if settings.overlaps_copies else "untried copies"
    return "workers" if cores <= settings.workers else "untried workers"


def _against_launching(run: Job, costs: StepCosts) -> Remedy | NoRemedy:
    """Suggest captured steps or the larger batch, which were tried."""
    if tried := costs.attribution.tried_by("captured"):
        captured = step_remedy(run, costs, tried)
        if captured.is_worth_it(run):
            return captured
    if costs.attribution.other_batch_images <= costs.settings.batch_size:
        return "small job"
    return larger_batch(run, costs)


def _against_computing(run: Job, costs: StepCosts) -> Remedy | NoRemedy:
    """Suggest the tried precision or algorithms that gain most. bf16 changes the model most."""
    remedies = [
        step_remedy(run, costs, tried)
        for tried in costs.attribution.tried
        if tried.by != "captured"
    ]
    worth = [remedy for remedy in remedies if remedy.is_worth_it(run)]
    worth.sort(key=lambda it: it.predicted.middle / (_BF16_GAIN if it.by == "bf16" else 1))
    return worth[-1] if worth else "used well"
