"""Answers of `photofinish ask` for a program to read, in the shape of report/answers.json."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from photofinish.answer.comparison import Comparison
from photofinish.answer.decision import Decision, decide
from photofinish.files import to_json, write_text_atomically
from photofinish.reporting.answer_records import answer_record
from photofinish.reporting.sentences import verdict
from photofinish.scripts.script_record import WholeJob


@dataclass(frozen=True)
class JobAnswer:
    """Answer for one job."""

    job: WholeJob
    pair: Comparison
    decision: Decision

    @classmethod
    def alone(cls, job: WholeJob, pair: Comparison) -> JobAnswer:
        """Return the answer for a job that is alone on a rented GPU."""
        return cls(job, pair, decide(pair))


def write_job_answers(file: Path, answers: Sequence[JobAnswer]) -> None:
    """Write answers and records as JSON."""
    write_text_atomically(file, to_json([_as_json(answer) for answer in answers]))


def _as_json(answer: JobAnswer) -> dict[str, Any]:
    pair = answer.pair
    records = {run.device: run.timings.model_dump(mode="json") for run in pair.trained}
    return {
        "job": asdict(answer.job),
        "answer": answer_record(pair, verdict(pair, answer.decision)).model_dump(mode="json"),
        "records": records,
    }
