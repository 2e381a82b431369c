"""Answers with their evidence, tables and figures: the only input of every output.

An output imports only this module of `answer`. What a job itself doesn't hold is computed here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

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
from photofinish.answer.decision import Action, Decision, decide_all, gpu_of_yours
from photofinish.answer.diagnosis import BUSY, Cause, Diagnosis
from photofinish.answer.fair_cpu import SlowKernels
from photofinish.answer.job_figures import figures_of, metric_texts
from photofinish.answer.parity import Layer, Parity
from photofinish.answer.prices import SECONDS_AN_HOUR, Price, cost_of
from photofinish.answer.remedies import Remedy
from photofinish.answer.renting import RentalOption
from photofinish.answer.same_model import SameModel, same_model
from photofinish.answer.seeds import OverSeeds, ScoreDifference, Spread
from photofinish.answer.slow_gpu import MOST_OF_IT, SlowGpu, launching_share
from photofinish.answer.speedups import BreakEvenEpochs, Kind, Speedup, epoch_speedup
from photofinish.answer.step_costs import PARTS, EpochStep
from photofinish.answer.uncertainty import Interval
from photofinish.answer.word import loads_longer_than_it_starts, of_one_training
from photofinish.results.job import Job
from photofinish.results.trained import DEVICE_LABELS, DeviceLabel

__all__ = [
    "BUSY", "MOST_OF_IT", "MOST_RUNS", "PARTS", "SECONDS_AN_HOUR", "About", "Answer", "Basis",
    "Candidate", "Cause", "DeviceLabel", "Diagnosis", "EpochStep", "Grid", "Interval",
    "Job", "Kind", "Layer",
    "OverSeeds", "Parity", "Price", "Remedy", "RentalOption", "ScoreDifference",
    "Speedup", "Spread", "Worth", "cost_of", "metric_texts",
]  # fmt: skip


@dataclass(frozen=True)
class RecordedRun:
    """Run of the same steps that another machine recorded."""

    job: Job
    gpu: str
    """Short name of its GPU."""
    epoch: Speedup
    scores: str | None
    """None for another training."""


@dataclass(frozen=True)
class JobRecord:
    """Answer for one experiment or script, with its evidence."""

    name: str
    is_script: bool
    worth: Worth
    action: Action
    one_training: Worth
    """Answer with the times of one training instead of all seeds and the sweep."""
    cpu: Job
    gpu: Job | None
    why_no_gpu: str | None
    steps: Mapping[DeviceLabel, EpochStep]
    causes: Mapping[DeviceLabel, tuple[Diagnosis, ...]]
    """Causes on each trained device, with the gains of the whole job by changes that were tried."""
    launching_share: float
    """Least share of a script's step that launching takes on the GPU here."""
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
    slow_gpu: SlowGpu | None
    own_speedup: tuple[float, Interval] | None
    """Speed-up by the answer's GPU if it needed no rent."""
    recorded: tuple[RecordedRun, ...]
    gpus_elsewhere: tuple[str, ...]

    @property
    def runs(self) -> tuple[Job, ...]:
        """Runs of the devices that trained, the CPU's first."""
        return (self.cpu, self.gpu) if self.gpu else (self.cpu,)


@dataclass(frozen=True)
class Cell:
    """Speed-up of one experiment in a grid, or its bound."""

    figure: float
    is_bound: bool
    answer: Answer


@dataclass(frozen=True)
class Grid:
    """Experiments that differ in two settings, with an experiment for each pair of values."""

    row_key: str
    column_key: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: dict[tuple[str, str], Cell]


@dataclass(frozen=True)
class Findings:
    """Answers for all jobs."""

    jobs: tuple[JobRecord, ...]
    grid: Grid | None
    """Speed-ups of experiments that differ in two settings."""


def answer_record(pairs: Sequence[Comparison]) -> Findings:
    """Return the answers for all jobs with their evidence."""
    decisions = decide_all(pairs)
    jobs = (job_record(pair, decision) for pair, decision in zip(pairs, decisions, strict=True))
    return Findings(tuple(jobs), grid(pairs, decisions))


def grid(pairs: Sequence[Comparison], decisions: Sequence[Decision]) -> Grid | None:
    """Return the experiments as a grid, or None if not exactly two settings vary."""
    experiments = [
        (pair, decision, pair.cpu.settings.values)
        for pair, decision in zip(pairs, decisions, strict=True)
        if pair.cpu.settings
    ]
    settings = [chosen for *_, chosen in experiments]
    values: dict[str, list[str]] = defaultdict(list)
    for key in dict.fromkeys(key for chosen in settings for key in chosen):
        values[key] = list(dict.fromkeys(str(chosen.get(key)) for chosen in settings))
    varying = [key for key, texts in values.items() if len(texts) > 1]
    if len(varying) != 2:
        return None
    row_key, column_key = sorted(varying, key=lambda key: len(values[key]))
    cells = {}
    for pair, decision, chosen in experiments:
        speedup = of_one_training(pair, decision.worth).speedup
        figure = speedup or pair.bounds.job.as_measured
        place = str(chosen.get(row_key)), str(chosen.get(column_key))
        cells[place] = Cell(figure, speedup is None, decision.answer)
    rows, columns = values[row_key], values[column_key]
    if len(cells) < len(rows) * len(columns):
        return None
    return Grid(row_key, column_key, tuple(rows), tuple(columns), cells)


def job_record(pair: Comparison, decision: Decision) -> JobRecord:
    worth, action = decision.worth, decision.action
    if action.remedy:
        (run,) = (run for run in pair.trained if run.device in action.devices)
        action = replace(action, remedy=_of_job(action.remedy, run))
    stays = pair.bounds.job
    share = pair.cpu.startup_seconds / stays.whole_seconds
    loads_longer = loads_longer_than_it_starts(pair)
    if loads_longer and (epoch := pair.bounds.epoch):
        share = epoch.measured_seconds / epoch.whole_seconds
    return JobRecord(
        name=pair.experiment,
        is_script=pair.cpu.settings is None,
        worth=worth,
        action=action,
        one_training=of_one_training(pair, worth),
        cpu=pair.cpu,
        gpu=pair.gpu,
        why_no_gpu=pair.why_no_gpu,
        steps=pair.steps,
        causes={run.device: known_causes(run, pair.diagnoses[run.device]) for run in pair.trained},
        launching_share=launching_share(pair.gpu) if pair.gpu else 0.0,
        figures={device: figures_of(pair, decision, device) for device in DEVICE_LABELS},
        speedups=pair.speedups,
        break_even=pair.break_even,
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
        slow_gpu=pair.slow_gpu,
        own_speedup=gpu_of_yours(pair, worth),
        recorded=tuple(_recorded(pair, job) for job in pair.references),
        gpus_elsewhere=tuple(short_name(job.hardware) for job in pair.gpus_elsewhere),
    )


def _of_job(remedy: Remedy, job: Job) -> Remedy:
    return replace(remedy, predicted=remedy.predicted.of_job(job))


def known_causes(run: Job, diagnoses: Sequence[Diagnosis]) -> tuple[Diagnosis, ...]:
    """Return the causes with the gains of the whole job, not of an epoch."""
    return tuple(
        replace(cause, remedies=tuple(_of_job(remedy, run) for remedy in cause.remedies))
        for cause in diagnoses
    )


def _recorded(pair: Comparison, job: Job) -> RecordedRun:
    scores = job.scores.in_words if job.scores and pair.has_same_losses(job) else None
    return RecordedRun(job, short_name(job.hardware), epoch_speedup(pair.cpu, job), scores)
