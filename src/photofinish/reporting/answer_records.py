"""An answer for programs: report/answers.json and `photofinish ask --json`.

docs/answers.schema.json describes it.
"""

from __future__ import annotations

import math
from typing import Any, Literal

from photofinish.comparing.candidates import About, Answer, Basis
from photofinish.comparing.decision import Action
from photofinish.comparing.diagnosis import Cause
from photofinish.comparing.pairs import Comparison
from photofinish.comparing.remedies import Remedy
from photofinish.comparing.times import Interval, job_interval
from photofinish.config.base import Record
from photofinish.reporting.causes import cause, commands, remedy_line
from photofinish.reporting.sentences import Verdict
from photofinish.results.records import DeviceLabel

Learns = Literal["the same", "other last bits", "something else"]
_LEARNS: dict[str, Learns] = {
    "tried threads": "other last bits",
}
"""Effect of a change on a model that stays the same otherwise. Other changes keep its bits."""


class Number(Record):
    """Figure, with the interval that contains the true value in 9 of 10 cases, if known."""

    value: float
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, value: float | None, interval: Interval | None = None) -> Number | None:
        """Return a number, or None if it is not known. JSON has no infinity."""
        if value is None or not math.isfinite(value):
            return None
        low, high = (end if math.isfinite(end) else None for end in interval or (math.nan,) * 2)
        return cls(value=value, low=low, high=high)


class Range(Record):
    """Predicted gain. With a `low` of 1, only the upper bound `high` is known."""

    low: float
    high: float


class CauseRecord(Record):
    """Cause that takes most of a job's or an epoch's time on a device."""

    device: DeviceLabel
    part: Literal["the job", "an epoch"]
    cause: Cause
    text: str


class Suggestion(Record):
    """Change of params.yaml that should make an epoch faster."""

    device: DeviceLabel
    settings: dict[str, Any]
    """Keys of params.yaml, with dots for their levels, and their values."""
    line: str
    """Line of params.yaml with these settings."""
    gain: Range | None
    """Predicted speed-up of an epoch, or null if it is not known."""
    evidence: Literal["tried", "bound", "not known"]
    """`tried`: measured on some steps."""
    learns: Learns
    """Effect of the change on the trained model."""
    command: str
    """Command that tries the change in a copy."""


class ActionRecord(Record):
    """Action that is recommended now."""

    kind: str
    text: str
    accelerator: str | None
    """Accelerator to rent, by its name for `photofinish rent --on`."""


class AnswerRecord(Record):
    """Answer for one experiment, script or job."""

    answer: Answer
    about: About
    evidence: Basis
    reason: str | None
    text: str
    action: ActionRecord
    cpu_seconds: Number | None
    """Time of the whole job on this CPU."""
    gpu: str | None
    gpu_seconds: Number | None
    """Time of the whole job on the deciding GPU, without a rented machine's start."""
    speedup: Number | None
    """Speed-up of the whole job."""
    saved_seconds: Number | None
    """Time that renting saves, without the machine's start."""
    causes: tuple[CauseRecord, ...]
    suggestions: tuple[Suggestion, ...]


def answer_record(pair: Comparison, verdict: Verdict) -> AnswerRecord:
    """Return the answer for an experiment, script or job."""
    decision, own, shown = verdict.decision, verdict.decision.own, verdict.decision.shown
    cpu = pair.cpu.timings
    cpu_seconds = Number.of(cpu.whole_seconds, job_interval(cpu))
    gpu, saved_seconds = shown.gpu, None
    if gpu and shown.about == "renting":
        saved_seconds = Number.of(shown.here_seconds - gpu.seconds, shown.saved)
    return AnswerRecord(
        answer=decision.answer,
        about=decision.about,
        evidence=decision.basis,
        reason=decision.reason,
        text=verdict.answer,
        action=_action(decision.action, verdict.action),
        cpu_seconds=cpu_seconds,
        gpu=shown.gpu_name,
        gpu_seconds=Number.of(gpu.seconds, gpu.interval) if gpu else None,
        speedup=Number.of(shown.speedup, shown.interval),
        saved_seconds=saved_seconds,
        causes=tuple(
            CauseRecord(device=device, part=found.of, cause=found.cause, text=cause(found))
            for device, diagnoses in pair.diagnoses.items()
            for found in diagnoses
        ),
        suggestions=tuple(
            _suggestion(pair.experiment, device, remedy)
            for device, diagnoses in pair.diagnoses.items()
            for found in diagnoses
            for remedy in (found.remedy, found.second)
            if remedy and own.reason != "short job"
        ),
    )


def _action(action: Action, text: str) -> ActionRecord:
    return ActionRecord(kind=action.kind, text=text, accelerator=action.accelerator)


def _suggestion(experiment: str, device: DeviceLabel, remedy: Remedy) -> Suggestion:
    return Suggestion.model_validate(
        {
            "device": device,
            "settings": remedy.settings,
            "line": remedy_line(remedy),
            "gain": Range(low=remedy.predicted.low, high=remedy.predicted.high),
            "evidence": "tried",
            "learns": _learns(remedy),
            "command": commands(experiment, remedy)[0],
        }
    )


def _learns(remedy: Remedy) -> Learns:
    """Return the effect of a change on the model."""
    if remedy.changes_model:
        return "something else"
    return _LEARNS.get(remedy.by, "the same")
