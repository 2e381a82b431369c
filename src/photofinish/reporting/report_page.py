"""The page: answers, pictures, evidence and all figures of experiments and scripts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import chain
from typing import TYPE_CHECKING

from photofinish.answer.record import Findings, JobRecord
from photofinish.config.kinds import KINDS
from photofinish.reporting import causes, tables
from photofinish.reporting.answer_words import legend, summary
from photofinish.reporting.answers import Answers, answer_of
from photofinish.reporting.page import Table, template
from photofinish.reporting.say import say
from photofinish.reporting.sentences import Verdict, verdict

if TYPE_CHECKING:
    from photofinish.reporting.drawing import Picture

MOST_SHOWN = 30
"""Maximum number of experiments with details on the page."""
_SECTIONS: dict[str, Callable[[JobRecord], Table]] = {
    "Speed-ups": tables.speedup_table,
    "Is it the same model?": tables.parity_table,
    "The script's metrics": tables.metrics_table,
    "Several seeds": tables.seeds_table,
    "Recorded elsewhere": tables.references_table,
    "Figures": tables.figures_table,
}
"""Function of each table by its title, which is also the template of its note.

Tables without rows are not shown.
"""


@dataclass(frozen=True)
class Page:
    html: str
    answers: Answers
    verdicts: list[Verdict]
    pictures: list[Picture]


def page_of(record: Findings, command: Sequence[str] | None = None) -> Page:
    """Return the page. Without matplotlib, it has no pictures.

    `command` is that of `action_text`.
    """
    verdicts = [verdict(job, command) for job in record.jobs]
    drawn, of_jobs = _pictures(record)
    answers = _answers(verdicts, is_asked=command is not None)
    html = template("report.html.j2").render(
        answers=answers,
        jobs=record.jobs,
        say=say,
        pictures=drawn,
        shown_jobs=[*zip(verdicts[:MOST_SHOWN], of_jobs, strict=True)],
        sections=_SECTIONS,
        causes=causes,
        has_files=command is None,
    )
    return Page(html, answers, verdicts, [*drawn, *chain(*of_jobs)])


def _pictures(record: Findings) -> tuple[list[Picture], list[list[Picture]]]:
    """Return the pictures of all jobs, and those of each job that is shown."""
    jobs = record.jobs[:MOST_SHOWN]
    if not find_spec("matplotlib"):
        return [], [[] for _ in jobs]
    from photofinish.reporting.answers_picture import all_jobs, heat_map
    from photofinish.reporting.job_pictures import job_pictures

    heat_maps = [heat_map(record.grid)] if record.grid else []
    return [all_jobs(jobs), *heat_maps], [job_pictures(job) for job in jobs]


def _answers(verdicts: list[Verdict], *, is_asked: bool) -> Answers:
    """Return the answers alone, without evidence."""
    jobs = [verdict.job for verdict in verdicts]
    answers = {verdict.job.name: answer_of(verdict) for verdict in verdicts}
    texts = [line for answer in answers.values() for line in answer.lines]
    return Answers(
        summary=summary(jobs),
        answers=answers,
        reasons=tuple(_reasons(jobs)),
        legend=tuple(legend(jobs, texts, is_asked=is_asked)),
        overview=tuple(tables.overview_table(verdicts)),
    )


def _reasons(jobs: Sequence[JobRecord]) -> list[str]:
    """Return why no GPU trained, and which were recorded elsewhere."""
    reasons = []
    for why in (job.why_no_gpu for job in jobs if job.why_no_gpu):
        is_absent = all(kind.absent in why for kind in KINDS.values())
        reasons.append(say("no GPU here") if is_absent else say("missing", why=why))
    if recorded := {gpu for job in jobs for gpu in job.gpus_elsewhere}:
        reasons.append(say("records", gpus=sorted(recorded)))
    return [*dict.fromkeys(reasons)]
