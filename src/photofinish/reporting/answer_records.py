"""An answer for programs: report/answers.json and `photofinish ask --json`.

docs/answers.schema.json describes it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal

from photofinish.answer.candidates import About, Answer, Basis
from photofinish.answer.comparison import Comparison
from photofinish.answer.diagnosis import Cause
from photofinish.answer.prices import Price, cost_of
from photofinish.answer.remedies import Remedy
from photofinish.answer.renting import RentalOption
from photofinish.answer.seeds import OverSeeds
from photofinish.answer.speedups import Kind
from photofinish.answer.uncertainty import Interval
from photofinish.answer.word import of_one_training
from photofinish.config.base import Record
from photofinish.reporting.causes import cause, commands, remedy_line
from photofinish.reporting.sentences import Verdict
from photofinish.results.job import Job
from photofinish.results.measurements import Learns
from photofinish.results.trained import DeviceLabel


class Number(Record):
    """Figure, with the interval that contains the true value in about 9 of 10 cases, if known."""

    value: float
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, value: float | None, interval: Interval | None = None) -> Number | None:
        """Return a number, or None if it is not known. JSON has no infinity."""
        if value is None or not math.isfinite(value):
            return None
        if interval is None or interval == (0.0, math.inf):
            return cls(value=value)
        low, high = (end if math.isfinite(end) else None for end in interval)
        return cls(value=value, low=low, high=high)


class Range(Record):
    """Predicted gain."""

    low: float
    high: float


class SpeedupRecord(Record):
    """Speed-up of the GPU here: 2 means half the CPU's time."""

    of: Kind
    cpu_seconds: float
    gpu_seconds: float
    speedup: Number | None


class SeedRecord(Record):
    """Training from one of several seeds on a device."""

    device: DeviceLabel
    seed: int
    score_name: str
    score: Number | None
    test_loss: Number | None
    target_epoch: int | None
    """Epoch that reached the target accuracy, or null if none did or there is no target."""
    target_seconds: float | None


class CandidateRecord(Record):
    """Accelerator that may be rented, with the job's estimated time and cost on it."""

    accelerator: str
    """Name for `photofinish rent`."""
    full_name: str
    epoch_seconds: float | None
    job_seconds: Number | None
    """Time of the whole job, without the machine's start."""
    cost: float | None
    """Cost of the job, without the machine's start."""
    fits: Literal["yes", "perhaps", "no"]
    """Whether a step fits into the memory."""
    needed_bytes: int
    """Least memory of a step."""
    hour_price: Price | None


class CauseRecord(Record):
    """Cause that takes most of a job's or an epoch's time on a device."""

    device: DeviceLabel
    part: Literal["the job", "an epoch"]
    cause: Cause
    text: str


class Suggestion(Record):
    """Change of params.yaml that should make the job faster."""

    device: DeviceLabel
    settings: dict[str, Any]
    """Keys of params.yaml, with dots for their levels, and their values."""
    line: str
    """Line of params.yaml with these settings."""
    gain: Range
    """Predicted speed-up of the whole job, from some steps with the change."""
    learns: Learns
    """Effect of the change on the trained model."""
    command: str
    """Command that tries the change in a copy."""


class ActionRecord(Record):
    """Action that is recommended now."""

    kind: str
    text: str
    accelerator: str | None
    """Accelerator to rent, by its name for `photofinish rent`."""


class AnswerRecord(Record):
    """Answer for one experiment, script or job. Its times are of one training."""

    answer: Answer
    about: About
    jobs: int = 1
    """Number of jobs of the sweep that the answer and its lines are about, each with all seeds."""
    evidence: Basis
    reason: str | None
    lines: tuple[str, str]
    """Both lines: what it recommends and its times, then the next step and the same model."""
    action: ActionRecord
    model: str
    """Whether the GPU trains the same model, or empty where no GPU ran."""
    cpu_seconds: Number | None
    """Time of the whole job on this CPU."""
    gpu: str | None
    gpu_seconds: Number | None
    """Time of the whole job on the deciding GPU, without a rented machine's start."""
    speedup: Number | None
    """Speed-up of the whole job."""
    saved_seconds: Number | None
    """Time that renting or using the GPU saves in this job, without the machine's start."""
    causes: tuple[CauseRecord, ...]
    suggestions: tuple[Suggestion, ...]
    speedups: tuple[SpeedupRecord, ...]
    """Speed-ups of a step, an epoch and the job, if a GPU here trained it."""
    seeds: tuple[SeedRecord, ...]
    """Trainings from several seeds."""
    candidates: tuple[CandidateRecord, ...]


def answer_record(pair: Comparison, verdict: Verdict) -> AnswerRecord:
    """Return the answer for an experiment, script or job."""
    decision, worth = verdict.decision, of_one_training(pair, verdict.decision.worth)
    gpu, saved_seconds = worth.gpu, None
    if gpu and worth.is_elsewhere:
        saved_seconds = Number.of(
            worth.here.seconds - gpu.time.seconds, worth.saved if worth.interval else None
        )
    return AnswerRecord(
        answer=decision.answer,
        about=decision.about,
        jobs=worth.jobs,
        evidence=worth.basis,
        reason=worth.reason,
        lines=verdict.lines,
        action=ActionRecord(
            kind=decision.action.kind, text=verdict.action, accelerator=decision.action.accelerator
        ),
        model=verdict.model,
        cpu_seconds=Number.of(worth.here.seconds, worth.here.interval),
        gpu=decision.gpu_name,
        gpu_seconds=Number.of(gpu.time.seconds, gpu.time.interval) if gpu else None,
        speedup=Number.of(worth.speedup, worth.interval),
        saved_seconds=saved_seconds,
        causes=tuple(
            CauseRecord(device=device, part=found.of, cause=found.cause, text=cause(found))
            for device, diagnoses in pair.diagnoses.items()
            for found in diagnoses
        ),
        suggestions=tuple(
            _suggestion(pair.experiment, device, remedy, found.run)
            for device, diagnoses in pair.diagnoses.items()
            for found in diagnoses
            for remedy in found.remedies
        ),
        speedups=tuple(
            SpeedupRecord(
                of=found.kind,
                cpu_seconds=found.cpu_seconds,
                gpu_seconds=found.device_seconds,
                speedup=Number.of(found.ratio, found.interval),
            )
            for found in (pair.compared.speedups.values() if pair.compared else ())
        ),
        seeds=tuple(seed for over in pair.seeds.items() for seed in _seeds(*over)),
        candidates=tuple(map(_candidate, pair.renting.options)),
    )


def _seeds(device: DeviceLabel, over: OverSeeds) -> Iterator[SeedRecord]:
    """Yield the result of each seed on a device."""
    targets = over.targets or [None] * len(over.seeds)
    values = over.seeds, over.score.values, over.test_loss.values, targets
    for seed, score, test_loss, target in zip(*values, strict=True):
        yield SeedRecord(
            device=device,
            seed=seed,
            score_name=over.scores.main_name,
            score=Number.of(score),
            test_loss=Number.of(test_loss),
            target_epoch=target.epoch if target else None,
            target_seconds=target.seconds if target else None,
        )


def _candidate(option: RentalOption) -> CandidateRecord:
    estimate = option.estimate
    return CandidateRecord(
        accelerator=option.accelerator.name,
        full_name=option.accelerator.full_name,
        epoch_seconds=estimate.epoch_seconds if estimate else None,
        job_seconds=Number.of(estimate.job.seconds, estimate.job.interval) if estimate else None,
        cost=cost_of(estimate.job.seconds, option.terms.price) if estimate else None,
        fits=option.fits,
        needed_bytes=option.needed_bytes,
        hour_price=option.terms.price,
    )


def _suggestion(experiment: str, device: DeviceLabel, remedy: Remedy, times: Job) -> Suggestion:
    gain = remedy.predicted.of_job(times)
    return Suggestion(
        device=device,
        settings=remedy.settings,
        line=remedy_line(remedy),
        gain=Range(low=gain.low, high=gain.high),
        learns=remedy.learns,
        command=commands(experiment, remedy)[0],
    )
