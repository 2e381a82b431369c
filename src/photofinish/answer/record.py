"""Answers with their evidence, tables and figures: the only input of every output.

An output imports only this module of `answer`. Each value is computed once, here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Literal

from photofinish.answer.candidates import (
    MOST_RUNS,
    About,
    Answer,
    Basis,
    Candidate,
    Worth,
    short_name,
)
from photofinish.answer.comparison import Comparison
from photofinish.answer.decision import Decision, decide_all, gpu_of_yours
from photofinish.answer.diagnosis import BUSY, Cause, Diagnosis, NoRemedy
from photofinish.answer.estimates import LAUNCH_SECONDS
from photofinish.answer.fair_cpu import SlowKernels
from photofinish.answer.grid import Grid, grid
from photofinish.answer.job_figures import figures_of, metric_texts, timed_text
from photofinish.answer.parity import Layer, Parity
from photofinish.answer.prices import SECONDS_AN_HOUR, Price, cost_of
from photofinish.answer.remedies import Remedy
from photofinish.answer.renting import RentalOption
from photofinish.answer.same_model import SameModel, same_model
from photofinish.answer.seeds import OverSeeds, ScoreDifference, Spread
from photofinish.answer.speedups import BreakEvenEpochs, Kind, Speedup, epoch_speedup
from photofinish.answer.step_costs import PARTS, shares, step_costs, step_share_seconds
from photofinish.answer.uncertainty import Interval
from photofinish.answer.word import loads_longer_than_it_starts, of_one_training
from photofinish.machine.host import allowed_cores
from photofinish.machine.load import share_of_others
from photofinish.results import EpochMetrics
from photofinish.results.job import Job, JobScript
from photofinish.results.trained import DEVICE_LABELS, DeviceEvaluation, DeviceLabel
from photofinish.wording import counted

__all__ = [
    "BUSY", "MOST_OF_IT", "MOST_RUNS", "PARTS", "SECONDS_AN_HOUR", "About", "Answer", "Basis",
    "Candidate", "Cause", "Decision", "DeviceLabel", "Grid", "Interval", "Kind", "Layer",
    "OverSeeds", "Parity", "Price", "Remedy", "RentalOption", "ScoreDifference",
    "Speedup", "Spread", "Worth", "cost_of", "metric_texts",
]  # fmt: skip
MOST_OF_IT = 0.5
"""Share from which an answer says that a GPU mostly waits, or launches."""


@dataclass(frozen=True)
class KnownCause:
    """Cause of a job's or an epoch's time."""

    of: Literal["the job", "an epoch"]
    cause: Cause
    likely: Cause | None
    not_known: str | None
    no_remedy: NoRemedy | None
    remedies: tuple[Remedy, ...]
    """Changes that were tried, each with the gain of the whole job."""
    share: float
    """Share of the job, of an epoch or of a step that it takes."""
    seconds: float
    """Time of that share of an epoch or step."""
    step_seconds: float
    is_apart: bool
    """True if steps were taken apart."""
    has_loader: bool
    """True if a loader brings their batches."""


@dataclass(frozen=True)
class RunRecord:
    """Job on one device."""

    device: DeviceLabel
    device_name: str
    parameter_count: int | None
    startup_seconds: float
    whole_seconds: float
    total_seconds: float
    """Time that was measured."""
    epoch_seconds: float
    seen_step_seconds: float
    """Mean of the timed steps, or a bound on it."""
    step_share_seconds: float | None
    shares: Mapping[str, float]
    """Parts of a step of an epoch."""
    waiting_share: float
    launching_share: float
    """Least share of a script's step that launching takes."""
    timed: str
    """Epochs or steps that were timed, of all, such as `3 of 50 epochs`."""
    done: str
    """Number of those that were timed."""
    is_extrapolated: bool
    is_bound: bool
    may_stop_early: bool
    stops_early: bool
    has_steps: bool
    has_seeds: bool
    in_graphs: bool
    is_outdated: bool
    threads: int
    cores: int
    busy: Sequence[str]
    """Reasons why its times are unreliable."""
    busy_steps: Sequence[str]
    """Reasons why the times of its steps are."""
    others_share: float
    uncounted: Sequence[str]
    """Operators of a step without a formula for their arithmetic."""
    causes: tuple[KnownCause, ...]
    metrics: Mapping[str, float | None]
    slow_line: tuple[float, str] | None
    script: JobScript | None
    scores: DeviceEvaluation | None
    """Scores of the model that it trained, with the names of its classes."""
    class_names: Sequence[str]
    history: Sequence[EpochMetrics]
    so_far_seconds: Sequence[float]
    """Training time up to each epoch's end."""


@dataclass(frozen=True)
class RecordedRun:
    """Run of the same steps that another machine recorded."""

    hardware: str
    gpu: str
    """Short name of its GPU."""
    machine: str
    started_at_unix_seconds: float
    epoch: Speedup
    whole_seconds: float
    timed: str
    is_extrapolated: bool
    scores: str | None
    """None for another training."""
    history: Sequence[EpochMetrics]
    busy: Sequence[str]


@dataclass(frozen=True)
class JobRecord:
    """Answer for one experiment or script, with its evidence."""

    name: str
    is_script: bool
    is_deterministic: bool
    decision: Decision
    one_training: Worth
    """Answer with the times of one training instead of all seeds and the sweep."""
    cpu: RunRecord
    gpu: RunRecord | None
    why_no_gpu: str | None
    figures: Mapping[DeviceLabel, Mapping[str, Any]]
    """Known figures of each device by their names in comparison.csv."""
    speedups: Mapping[Kind, Speedup]
    """Speed-ups of the GPU here, or none."""
    break_even: BreakEvenEpochs | None
    parity: Parity | None
    model: SameModel
    seeds: Mapping[DeviceLabel, OverSeeds]
    candidates: tuple[Candidate, ...]
    options: tuple[RentalOption, ...]
    not_counted: str | None
    stays_seconds: float
    """Time that stays on the CPU with any GPU."""
    stays_share: float
    """Share of the job or of an epoch that stays."""
    loads_longer: bool
    """True if most of that is loading, not start-up."""
    slow_kernels: SlowKernels | None
    own_speedup: tuple[float, Interval] | None
    """Speed-up by the answer's GPU if it needed no rent."""
    currency: str
    recorded: tuple[RecordedRun, ...]
    gpus_elsewhere: tuple[str, ...]

    @property
    def runs(self) -> tuple[RunRecord, ...]:
        """Runs of the devices that trained, the CPU's first."""
        return (self.cpu, self.gpu) if self.gpu else (self.cpu,)


@dataclass(frozen=True)
class Findings:
    """Answers for all jobs."""

    jobs: tuple[JobRecord, ...]
    grid: Grid | None
    """Speed-ups of experiments that differ in two settings."""


def answer_record(pairs: Sequence[Comparison]) -> Findings:
    """Return the answers for all jobs with their evidence."""
    both = [*zip(pairs, decide_all(pairs), strict=True)]
    experiments = [each for each in both if each[0].cpu.settings]
    of_two = grid([pair for pair, _ in experiments], [decision for _, decision in experiments])
    return Findings(tuple(job_record(*each) for each in both), of_two)


def job_record(pair: Comparison, decision: Decision) -> JobRecord:
    action, runs = decision.action, {run.device: run for run in pair.trained}
    if action.remedy:
        remedy = _of_job(action.remedy, runs[action.devices[0]])
        decision = replace(decision, action=replace(action, remedy=remedy))
    stays, settings = pair.bounds.job, pair.cpu.settings
    share = pair.cpu.startup_seconds / stays.whole_seconds
    loads_longer = loads_longer_than_it_starts(pair)
    if loads_longer and (epoch := pair.bounds.epoch):
        share = epoch.measured_seconds / epoch.whole_seconds
    return JobRecord(
        name=pair.experiment,
        is_script=settings is None,
        is_deterministic=settings is None or settings.values["deterministic"] == "True",
        decision=decision,
        one_training=of_one_training(pair, decision.worth),
        cpu=run_record(pair.cpu, pair.diagnoses["cpu"]),
        gpu=run_record(pair.gpu, pair.diagnoses["gpu"]) if pair.gpu else None,
        why_no_gpu=pair.why_no_gpu,
        figures={device: figures_of(pair, decision, device) for device in DEVICE_LABELS},
        speedups=pair.compared.speedups if pair.compared else {},
        break_even=pair.compared.break_even if pair.compared else None,
        parity=pair.parity,
        model=same_model(pair),
        seeds=pair.seeds,
        candidates=pair.candidates,
        options=pair.renting.options,
        not_counted=pair.renting.not_counted,
        stays_seconds=stays.measured_seconds,
        stays_share=min(1.0, share),
        loads_longer=loads_longer,
        slow_kernels=pair.slow_kernels,
        own_speedup=gpu_of_yours(pair, decision.worth),
        currency=pair.settings.prices.currency,
        recorded=tuple(_recorded(pair, each) for each in pair.references),
        gpus_elsewhere=tuple(short_name(job.hardware) for job in pair.gpus_elsewhere),
    )


def _of_job(remedy: Remedy, job: Job) -> Remedy:
    return replace(remedy, predicted=remedy.predicted.of_job(job))


def run_record(job: Job, diagnoses: Sequence[Diagnosis]) -> RunRecord:
    trained, script, operations = job.trained, job.script, job.operations
    steps = [part for part in job.parts if part.holds == "steps"]
    launching_share = 0.0
    if script and script.idle_share >= MOST_OF_IT and operations:  # else the GPU's work hides it
        launching_seconds = operations.kernels * LAUNCH_SECONDS[0]
        launching_share = min(1.0, launching_seconds / job.median_step_seconds)
    taken = trained.steps_taken if trained else None
    epochs = trained.epochs if trained else ()
    return RunRecord(
        device=job.device,
        device_name=job.device_name,
        parameter_count=job.parameter_count,
        startup_seconds=job.startup_seconds,
        whole_seconds=job.whole_seconds,
        total_seconds=job.total_seconds,
        epoch_seconds=job.median_epoch_seconds,
        seen_step_seconds=sum(part.seconds for part in steps)
        / (sum(part.steps for part in steps) or 1.0),
        step_share_seconds=step_share_seconds(job),
        shares=shares(job),
        waiting_share=job.waiting_share,
        launching_share=launching_share,
        timed=timed_text(job),
        done=counted(round(job.timed.done), job.timed.unit),
        is_extrapolated=job.untimed_epochs > 0,
        is_bound=job.is_bound,
        may_stop_early=job.may_stop_early,
        stops_early=bool(job.settings and job.settings.stops_early),
        has_steps=job.has_steps,
        has_seeds=job.seeds_seconds > 0,
        in_graphs=taken is not None and taken.kind == "graph",
        is_outdated=job.is_outdated,
        threads=job.host.threads or 1,
        cores=allowed_cores(job.host.cpu) if job.host.cpu else 1,
        busy=job.busy,
        busy_steps=job.step_warnings,
        others_share=share_of_others(job.load),
        uncounted=operations.without_formula if operations else (),
        causes=tuple(_cause(job, each) for each in diagnoses),
        metrics=job.metrics,
        slow_line=job.loader.slow_line if job.loader else None,
        script=script,
        scores=trained.scores if trained else None,
        class_names=trained.class_names if trained else (),
        history=job.history,
        so_far_seconds=[*accumulate(epoch.training_seconds for epoch in epochs)],
    )


def _cause(job: Job, found: Diagnosis) -> KnownCause:
    """Return a cause with the share of the time that it takes."""
    costs, kind = step_costs(job), found.likely or found.cause
    share, seconds, step_seconds = job.waiting_share, 0.0, 0.0
    if found.cause == "start-up-bound":
        share = job.startup_seconds / job.whole_seconds
    elif costs is None and share:
        seconds = share * (step_share_seconds(job) or 0.0)
        step_seconds = job.median_step_seconds
    elif costs and kind in ("input-bound", "copy-bound"):
        seconds = costs.input_seconds if kind == "input-bound" else costs.copying_seconds
        share, step_seconds = seconds / costs.epoch_share_seconds, costs.step_alone_seconds
    elif costs:
        seconds, step_seconds = costs.fixed_seconds, costs.step_alone_seconds
        share = seconds / step_seconds if kind == "launch-bound" else 1 - seconds / step_seconds
    return KnownCause(
        found.of,
        found.cause,
        found.likely,
        found.not_known,
        found.no_remedy,
        tuple(_of_job(each, job) for each in found.remedies),
        min(1.0, share),
        seconds,
        step_seconds,
        costs is not None,
        costs is not None and costs.settings.workers is not None,
    )


def _recorded(pair: Comparison, job: Job) -> RecordedRun:
    return RecordedRun(
        job.hardware,
        short_name(job.hardware),
        job.machine,
        job.started_at_unix_seconds,
        epoch_speedup(pair.cpu, job),
        job.whole_seconds,
        timed_text(job),
        job.untimed_epochs > 0,
        job.trained.scores.in_words if job.trained and pair.has_same_losses(job) else None,
        job.history,
        job.busy,
    )
