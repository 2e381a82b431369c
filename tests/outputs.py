"""Outputs of comparisons, each by its record."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from photofinish.answer.comparison import Comparison
from photofinish.answer.decision import Decision, decide
from photofinish.answer.record import JobRecord, answer_record, job_record
from photofinish.reporting import report, sentences, tables
from photofinish.reporting.answers import Answers
from photofinish.reporting.sentences import Verdict


def record_of(pair: Comparison, decision: Decision | None = None) -> JobRecord:
    return job_record(pair, decision or decide(pair))


def verdict(pair: Comparison, decision: Decision | None = None) -> Verdict:
    return sentences.verdict(record_of(pair, decision))


def comparison_rows(pairs: Sequence[Comparison]) -> tables.Rows:
    return tables.comparison_rows(answer_record(pairs))


def write_report(pairs: Sequence[Comparison], folder: Path) -> Answers:
    return report.write_report(answer_record(pairs), folder)
