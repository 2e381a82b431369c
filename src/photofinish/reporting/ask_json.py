"""Answers of `photofinish ask` for a program to read, in the shape of report/answers.json."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from photofinish.answer.comparison import Comparison
from photofinish.answer.decision import Decision
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


def write_job_answers(
    file: Path, answers: Sequence[JobAnswer], command: Sequence[str] = ()
) -> None:
    """Write answers and records as JSON. `command` is the script's that was asked about."""
    write_text_atomically(file, to_json([_as_json(answer, command) for answer in answers]))


def _as_json(answer: JobAnswer, command: Sequence[str]) -> dict[str, Any]:
    pair = answer.pair
    found = verdict(pair, answer.decision, command)
    records = {run.device: run.timings.model_dump(mode="json") for run in pair.trained}
    return {
        "job": asdict(answer.job),
        "answer": answer_record(pair, found).model_dump(mode="json"),
        "records": records,
    }
