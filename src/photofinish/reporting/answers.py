"""Answers for programs: report/answers.json, `ask --json` and `photofinish.report()`.

docs/answers.schema.json describes them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError

from photofinish.answer.record import (
    About,
    Answer,
    Basis,
    Cause,
    DeviceLabel,
    Interval,
    JobRecord,
    Kind,
    Price,
    RentalOption,
    cost_of,
)
from photofinish.config.base import Record
from photofinish.errors import UserError
from photofinish.files import OWN_FOLDER
from photofinish.reporting.causes import commands, reason, remedy_line
from photofinish.reporting.page import template
from photofinish.reporting.sentences import Verdict
from photofinish.results.measurements import Learns

if TYPE_CHECKING:
    import pandas as pd

ANSWERS = "answers.json"
_WIDEST_NAME = 24
"""Width of the column of names. Longer names have a line of their own."""


class Number(Record):
    """Figure, with the interval that holds it in 9 of 10 cases, if known."""

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
    """Predicted speed-up."""

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
    """Accelerator that may be rented, with the job's estimated time and cost, without setup."""

    accelerator: str
    """Name for `photofinish rent`."""
    full_name: str
    epoch_seconds: float | None
    job_seconds: Number | None
    """Time of the whole job, without the machine's start."""
    cost: float | None
    """Cost of the job, without the machine's start."""
    fits: Literal["yes", "perhaps", "no"] | None
    """Whether a step fits into the memory, or null if it is not known."""
    needed_bytes: int | None
    """Memory that a step takes."""
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
    """Answer for one experiment, script or job. Its times are of one training, without setup."""

    answer: Answer
    about: About
    jobs: int = 1
    """Number of jobs of the sweep that the answer is about, each with all seeds."""
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


class Answers(Record):
    """Answers of a report: report/answers.json. A notebook shows them as a table."""

    schema_version: Literal[4] = 4
    summary: str
    """One answer over all experiments."""
    answers: dict[str, AnswerRecord]
    """Answer for each experiment and script."""
    reasons: tuple[str, ...]
    """Sentences why no GPU trained, and which were measured elsewhere."""
    legend: tuple[str, ...]
    """Legend of all answers' lines, such as marks."""
    overview: tuple[dict[str, str], ...]
    """A row for each job, as the page shows it."""

    @property
    def table(self) -> pd.DataFrame:
        """Table of all figures, with a row for each experiment and device: comparison.csv."""
        import pandas as pd

        return pd.read_csv(_report() / "comparison.csv")

    def __str__(self) -> str:
        """Return the lines of each answer behind its name, then the legend."""
        width = min(max(map(len, self.answers), default=0) + 2, _WIDEST_NAME)
        texts = []
        for name, answer in self.answers.items():
            first, second = answer.lines
            if len(name) + 2 > width:
                texts += [name, f"{'':{width}}{first}"]
            else:
                texts.append(f"{name:{width}}{first}")
            texts.append(f"{'':{width}}{second}")
        return "\n".join([*texts, *self.legend])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return template("answers.html.j2").render(report=self)


def read_answers() -> Answers:
    try:
        content = (_report() / ANSWERS).read_text(encoding="utf-8")
    except FileNotFoundError:
        problem = f"nothing is compared in {Path.cwd()} yet"
        raise UserError(f"{problem}: run `photofinish run` there first") from None
    try:
        return Answers.model_validate_json(content)
    except ValidationError:
        older = f"report/{ANSWERS} is of another photofinish"
        raise UserError(f"{older}: `photofinish run` writes it again") from None


def _report() -> Path:
    """Return the folder of the report, which may be in the folder photofinish/."""
    report = Path("report")
    return report if (report / ANSWERS).is_file() else OWN_FOLDER / report


def answer_of(verdict: Verdict) -> AnswerRecord:
    job, worth = verdict.job, verdict.job.one_training
    gpu, saved_seconds = worth.gpu, None
    if gpu and worth.is_elsewhere:
        saved_seconds = Number.of(
            worth.cpu_time.seconds - gpu.time.seconds, worth.saved if worth.interval else None
        )
    causes = [(run, it) for run in job.runs for it in job.causes[run.device]]
    return AnswerRecord(
        answer=job.worth.answer,
        about=job.worth.about,
        jobs=worth.jobs,
        evidence=worth.basis,
        reason=worth.reason,
        lines=verdict.lines,
        action=ActionRecord(
            kind=job.action.kind, text=verdict.action, accelerator=job.action.accelerator
        ),
        model=verdict.model,
        cpu_seconds=Number.of(worth.cpu_time.seconds, worth.cpu_time.interval),
        gpu=job.worth.gpu_name,
        gpu_seconds=Number.of(gpu.time.seconds, gpu.time.interval) if gpu else None,
        speedup=Number.of(worth.speedup, worth.interval),
        saved_seconds=saved_seconds,
        causes=tuple(
            CauseRecord(device=run.device, part=it.of, cause=it.cause, text=reason(run, it))
            for run, it in causes
        ),
        suggestions=tuple(
            Suggestion(
                device=run.device,
                settings=remedy.settings,
                line=remedy_line(remedy),
                gain=Range(low=remedy.predicted.low, high=remedy.predicted.high),
                learns=remedy.learns,
                command=commands(job.name, remedy)[0],
            )
            for run, it in causes
            for remedy in it.remedies
        ),
        speedups=tuple(
            SpeedupRecord(
                of=speedup.kind,
                cpu_seconds=speedup.cpu_seconds,
                gpu_seconds=speedup.device_seconds,
                speedup=Number.of(speedup.ratio, speedup.interval),
            )
            for speedup in job.speedups.values()
        ),
        seeds=tuple(_seeds(job)),
        candidates=tuple(map(_candidate, job.options)),
    )


def _seeds(job: JobRecord) -> Iterator[SeedRecord]:
    for device, over in job.seeds.items():
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
