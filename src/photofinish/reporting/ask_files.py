"""Answers of `photofinish ask` as files: JSON and a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from photofinish.answer.comparison import Comparison
from photofinish.answer.decision import Decision
from photofinish.files import to_json, write_text_atomically
from photofinish.reporting.answer_records import answer_record
from photofinish.reporting.sentences import verdict
from photofinish.results.measured import Measured
from photofinish.results.trained import DeviceLabel
from photofinish.scripts.script_record import WholeJob


@dataclass(frozen=True)
class JobAnswer:
    job: WholeJob
    pair: Comparison
    decision: Decision
    records: Mapping[DeviceLabel, Measured]
    """What each device measured, the CPU's first."""


class AskFiles(NamedTuple):
    """Files to write, if any."""

    json: Path | None = None
    html: Path | None = None


def write_job_answers(
    files: AskFiles, answers: Sequence[JobAnswer], command: Sequence[str] = ()
) -> None:
    """Write answers and records as JSON, and the page. `command` is the script's, if it is one."""
    if files.json:
        as_json = [_as_json(answer, command) for answer in answers]
        write_text_atomically(files.json, to_json(as_json))
    if files.html:
        from photofinish.reporting.report_page import page_of

        decisions = [answer.decision for answer in answers]
        page = page_of([answer.pair for answer in answers], decisions, command)
        write_text_atomically(files.html, page.html)


def _as_json(answer: JobAnswer, command: Sequence[str]) -> dict[str, Any]:
    pair = answer.pair
    found = verdict(pair, answer.decision, command)
    records = {device: run.model_dump(mode="json") for device, run in answer.records.items()}
    return {
        "job": asdict(answer.job),
        "answer": answer_record(pair, found).model_dump(mode="json"),
        "records": records,
    }
