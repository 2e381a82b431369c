"""The page: answers, pictures, evidence and all figures of experiments and scripts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from photofinish.answer.candidates import short_name
from photofinish.answer.comparison import Comparison
from photofinish.answer.decision import Decision
from photofinish.answer.grid import grid
from photofinish.reporting import tables
from photofinish.reporting.answer_records import answer_record
from photofinish.reporting.answer_words import legend, phrase
from photofinish.reporting.answer_words import summary as summary_of
from photofinish.reporting.answers import Answers
from photofinish.reporting.causes import commands, prediction, remedy_line
from photofinish.reporting.figures_table import figures_table
from photofinish.reporting.page import Table, template
from photofinish.reporting.say import say
from photofinish.reporting.sentences import Verdict, verdict
from photofinish.results.references import hardware

if TYPE_CHECKING:
    from photofinish.reporting.drawing import Picture

MOST_SHOWN = 30
"""Maximum number of experiments with details on the page."""
_SECTIONS: dict[str, Callable[[Comparison], Table]] = {
    "Speed-ups": tables.speedup_table,
    "Loading with more workers": tables.workers_table,
    "Is it the same model?": tables.parity_table,
    "The script's metrics": tables.metrics_table,
    "Several seeds": tables.seeds_table,
    "Recorded elsewhere": tables.references_table,
    "Figures": figures_table,
}
"""Function of each table by its title, which is also the template of its note.

Tables without rows are not shown.
"""
_OF_LOADING = "Loading with more workers"
"""Title of the table that is shown only where an epoch waits for its loader."""


@dataclass(frozen=True)
class Details:
    """Part of the page about one experiment."""

    verdict: Verdict
    remedies: list[tuple[str, str, str]]
    """Suggestions, each as line of params.yaml, predicted gain, and commands to try the line."""
    tables: list[tuple[str, Table, str]]
    """Title, table and note."""
    pictures: list[Picture]
    notes: list[str]
    """Reasons why pictures and tables are left out."""


@dataclass(frozen=True)
class Page:
    html: str
    answers: Answers
    verdicts: list[Verdict]
    pictures: list[Picture]


def page_of(
    pairs: Sequence[Comparison], decisions: Sequence[Decision], command: Sequence[str] | None = None
) -> Page:
    """Return the page. Without matplotlib, it has no pictures.

    `command` is that of `action_text`.
    """
    verdicts = [
        verdict(pair, decision, command) for pair, decision in zip(pairs, decisions, strict=True)
    ]
    shown = pairs[:MOST_SHOWN]
    details = [_details(*each) for each in zip(shown, verdicts, strict=False)]
    drawn = _pictures_of_all(pairs, decisions)
    overview = tables.overview_table(verdicts, pairs)
    summary = summary_of(list(zip(pairs, decisions, strict=True)))
    answers = _answers(pairs, verdicts, summary, overview)
    experiments = [pair for pair in pairs if pair.cpu.settings]
    recorded = {short_name(hardware("gpu", each)) for pair in pairs for each in pair.gpus_elsewhere}
    html = template("report.html.j2").render(
        summary=summary,
        legend=answers.legend,
        verdicts=verdicts[:MOST_SHOWN],
        reasons=_reasons(verdicts),
        is_compared=any(pair.gpu for pair in experiments),
        records=say("records", gpus=sorted(recorded)) if recorded else "",
        phrase=phrase,
        overview=overview,
        pictures=drawn,
        details=details,
        has_experiments=bool(experiments),
        has_scripts=len(experiments) < len(pairs),
        has_files=command is None,
    )
    pictures = [*drawn, *(picture for each in details for picture in each.pictures)]
    return Page(html, answers, verdicts, pictures)


def _pictures_of_all(pairs: Sequence[Comparison], decisions: Sequence[Decision]) -> list[Picture]:
    if not find_spec("matplotlib"):
        return []
    from photofinish.reporting.answers_picture import all_jobs, heat_map

    of_experiments = [each for each in zip(pairs, decisions, strict=True) if each[0].cpu.settings]
    found = grid([pair for pair, _ in of_experiments], [each for _, each in of_experiments])
    heat_maps = [heat_map(found)] if found else []
    return [all_jobs(pairs[:MOST_SHOWN], decisions[:MOST_SHOWN]), *heat_maps]


def _answers(
    pairs: Sequence[Comparison], verdicts: list[Verdict], summary: str, overview: Table
) -> Answers:
    """Return the answers alone, without evidence."""
    answers = {
        pair.experiment: answer_record(pair, each)
        for pair, each in zip(pairs, verdicts, strict=True)
    }
    texts = [line for each in answers.values() for line in each.lines]
    both = [(pair, each.decision) for pair, each in zip(pairs, verdicts, strict=True)]
    return Answers(
        summary=summary,
        answers=answers,
        reasons=tuple(_reasons(verdicts)),
        legend=tuple(legend(both, texts, is_asked=False)),
        overview=tuple(overview),
    )


def _reasons(verdicts: list[Verdict]) -> list[str]:
    """Return the different reasons why there was no GPU."""
    return list(dict.fromkeys(each.missing for each in verdicts if each.missing))


def _details(pair: Comparison, answer: Verdict) -> Details:
    diagnoses = [found for of_device in pair.diagnoses.values() for found in of_device]
    is_loading = any("input-bound" in (found.cause, found.likely) for found in diagnoses)
    sections = [
        (title, found, say(title))
        for title, table in _SECTIONS.items()
        if (is_loading or title != _OF_LOADING) and (found := table(pair))
    ]
    drawn, left_out = _pictures_of(pair, answer.decision)
    suggestions = [
        (
            remedy_line(each),
            prediction(each, found.run.timings),
            "\n".join(commands(pair.experiment, each)),
        )
        for found in diagnoses
        for each in found.remedies
    ]
    return Details(answer, suggestions, sections, drawn, left_out)


def _pictures_of(pair: Comparison, decision: Decision) -> tuple[list[Picture], list[str]]:
    """Return the pictures of a job, and the reasons for those that are left out."""
    if not find_spec("matplotlib"):
        return [], [say("no pictures")]
    from photofinish.reporting.job_pictures import job_pictures

    return job_pictures(pair, decision)
