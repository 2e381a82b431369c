"""Causes of a job's and an epoch's time, with changes to params.yaml that help, and their gains.

An epoch waits for the slower of two: loading without steps, and steps with their batch on the
device. A step's time is mostly fixed, or mostly grows with its samples.

The cause is unknown on a busy machine, and if no steps were taken apart. A change is suggested if
the measured steps were certainly faster with it.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from photofinish.answer.fair_cpu import fewer_threads
from photofinish.answer.step_costs import EpochStep, StepCosts, epoch_step
from photofinish.answer.times import ONCE, Interval, UncertainTime, error_of_mean
from photofinish.machine.fingerprint import CpuTarget
from photofinish.machine.host import allowed_cores
from photofinish.results.job import Job, JobSettings
from photofinish.results.measurements import LEARNS, InTurns, Learns, LoaderTimes, Tried, TriedBy

_OTHER_RUN = math.log(1.07)
"""What a whole training may gain more, or less, than steps that are tried, by hand.

With it, 50 of 55 gains of `python -m benchmarks.suggestions` lay within their predictions.
"""
_MOST_REMEDIES = 2  # that are shown
_LEAST_GAIN = 1.05
"""Smallest speed-up of a job for which a change is suggested, by hand. Two runs differ as much."""
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


def step_speedup(turns: InTurns) -> Interval | None:
    """Return the interval of a step's speed-up, or None from a single turn."""
    ratios = turns.ratios
    if len(ratios) < 2:
        return None
    gain = UncertainTime(statistics.geometric_mean(ratios))
    return gain.off_by(error_of_mean(ratios), _OTHER_RUN).interval


class Gain(NamedTuple):
    """Predicted speed-up of an epoch."""

    low: float = 0.0
    high: float = math.inf

    @classmethod
    def of_steps(cls, costs: StepCosts, turns: InTurns, steps: float = 1.0) -> Gain:
        """Return the gain of an epoch by steps that were tried, `steps` times as many.

        The low end keeps the time for data of an epoch, the high end that of a step. Loading that
        steps hide now bounds both.
        """
        speedup = step_speedup(turns)
        if speedup is None:
            return cls()
        low, high = speedup
        fast, slow = (
            min(1.0, costs.step_alone_seconds / share) for share in costs.epoch_share_spread
        )
        low = 1 / (1 - slow + steps * slow / low)
        high = 1 / steps / (1 - fast + fast / high)
        if not costs.input_seconds:
            return cls(low, high)
        least, most = (share / costs.input_seconds for share in costs.epoch_share_spread)
        return cls(min(low, least), min(high, most))

    @property
    def middle(self) -> float:
        return math.sqrt(self.low * self.high)

    def of_job(self, times: Job) -> Gain:
        """Return the speed-up of the whole job, of which only the epochs get faster.

        Its start-up takes another time in each run.
        """
        startup_seconds = min(times.startup_seconds, times.once_seconds)
        gains = []
        for other_seconds in UncertainTime(startup_seconds, ONCE, ONCE).interval:
            once_seconds = times.once_seconds - startup_seconds + other_seconds
            whole_seconds = once_seconds + times.passes_seconds
            gains += [whole_seconds / (once_seconds + times.passes_seconds / gain) for gain in self]
        return Gain(min(gains), max(gains))


@dataclass(frozen=True)
class Remedy:
    by: TriedBy
    settings: dict[str, Any]
    """All keys of params.yaml that change, and their values."""
    predicted: Gain
    """Speed-up of an epoch, or of the whole job in a comparison."""

    @property
    def learns(self) -> Learns:
        return LEARNS[self.by]

    def is_worth_it(self, times: Job) -> bool:
        """Return True if the job gets clearly faster, and even the low end is a gain."""
        return self.predicted.low > 1 and self.predicted.of_job(times).middle >= _LEAST_GAIN


def step_remedy(run: Job, costs: StepCosts, tried: Tried) -> Remedy:
    return to_remedy(run, costs.settings, tried, Gain.of_steps(costs, tried.turns))


def larger_batch(run: Job, costs: StepCosts) -> Remedy:
    tried, images = costs.attribution, costs.attribution.other_batch_images
    assert run.steady_state
    steps = costs.settings.batch_size / images
    turns = InTurns(base=run.steady_state, changed=tried.other_batch)
    gain = Gain.of_steps(costs, turns, steps)
    return Remedy("batch size", {f"experiments.{run.name}.batch_size": images}, gain)


def loader_remedies(run: Job) -> list[Remedy]:
    """Return the two changes of params.yaml with the highest gain, or fewer, best first."""
    loader, settings = run.loader, run.settings
    if loader is None or settings is None or settings.workers is None:
        return []
    remedies = []
    for tried in loader.tried_inputs:
        steps = max(1.0, run.samples / settings.batch_size)
        gain = _gain_of_input(run, steps, loader, settings, tried)
        remedies.append(to_remedy(run, settings, tried, gain))
    remedies = [remedy for remedy in remedies if remedy.is_worth_it(run)]
    return sorted(remedies, key=lambda remedy: -remedy.predicted.middle)[:_MOST_REMEDIES]


def _gain_of_input(
    run: Job, epoch_steps: float, loader: LoaderTimes, settings: JobSettings, tried: Tried
) -> Gain:
    """Return an epoch's gain by another input, with the starts of workers that were not tried."""
    speedup = step_speedup(tried.turns)
    if speedup is None:
        return Gain()
    changed = tried.changes.get("input", {})
    workers = 0 if changed == "resident" else changed.get("workers", settings.workers or 0)
    starts = {0: 0.0} | {tried.workers: tried.start_seconds for tried in loader.tried_workers}
    # Workers that persist start once in all epochs.
    once = 1 / run.epochs
    own_share = once if settings.persistent_workers else 1.0
    new_share = once if tried.by == "workers" else own_share
    own_seconds = own_share * starts.get(settings.workers or 0, 0.0) / epoch_steps
    new_seconds = new_share * starts.get(workers, math.inf) / epoch_steps
    step_seconds = statistics.fmean(tried.turns.base.step_seconds)
    least, most = UncertainTime(1.0, ONCE, ONCE).interval
    own_ends = (most, least) if own_seconds == new_seconds else (least, most)  # one start
    low, high = (
        (step_seconds + own_seconds * own_off) / (step_seconds / end + new_seconds * new_off)
        for end, own_off, new_off in zip(speedup, own_ends, (most, least), strict=True)
    )
    return Gain(low, high)


def to_remedy(run: Job, settings: JobSettings, tried: Tried, gain: Gain) -> Remedy:
    """Return the lines of params.yaml that change as was tried."""
    owners = {"decode": f"datasets.{settings.dataset}"}
    changes = {
        f"{owners.get(key, f'experiments.{run.name}')}.{key}": value
        for key, value in tried.changes.items()
    }
    return Remedy(tried.by, changes, gain)


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
    for tried in costs.attribution.tried:
        if tried.by == "captured":
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
