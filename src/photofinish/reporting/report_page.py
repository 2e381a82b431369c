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
from photofinish.config.kinds import KINDS
from photofinish.reporting import tables
from photofinish.reporting.answer_records import answer_record
from photofinish.reporting.answer_words import legend
from photofinish.reporting.answer_words import summary as summary_of
from photofinish.reporting.answers import Answers
from photofinish.reporting.causes import commands, prediction, remedy_line
from photofinish.reporting.page import Table, template
from photofinish.reporting.say import say
from photofinish.reporting.sentences import Verdict, verdict

if TYPE_CHECKING:
    from photofinish.reporting.drawing import Picture

MOST_SHOWN = 30
"""Maximum number of experiments with details on the page."""
_SECTIONS: dict[str, Callable[[Comparison], Table]] = {
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
class Details:
    """Part of the page about one experiment."""

    verdict: Verdict
    remedies: list[tuple[str, str, str]]
    """Suggestions, each with its gain and the commands to try it."""
    tables: list[tuple[str, Table, str]]
    """Title, table and note."""
    pictures: list[Picture]


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
    answers = _answers(pairs, verdicts, is_asked=command is not None)
    experiments = [pair for pair in pairs if pair.cpu.settings]
    html = template("report.html.j2").render(
        answers=answers,
        is_compared=any(pair.gpu for pair in experiments),
        say=say,
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


def _answers(pairs: Sequence[Comparison], verdicts: list[Verdict], *, is_asked: bool) -> Answers:
    """Return the answers alone, without evidence."""
    answers = {
        pair.experiment: answer_record(pair, each)
        for pair, each in zip(pairs, verdicts, strict=True)
    }
    texts = [line for each in answers.values() for line in each.lines]
    both = [(pair, each.decision) for pair, each in zip(pairs, verdicts, strict=True)]
    return Answers(
        summary=summary_of(both),
        answers=answers,
        reasons=tuple(_reasons(pairs, verdicts)),
        legend=tuple(legend(both, texts, is_asked=is_asked)),
        overview=tuple(tables.overview_table(verdicts, pairs)),
    )


def _reasons(pairs: Sequence[Comparison], verdicts: list[Verdict]) -> list[str]:
    """Return why no GPU trained, and which were recorded elsewhere."""
    reasons = []
    for pair, each in zip(pairs, verdicts, strict=True):
        why = pair.why_no_gpu or ""
        is_absent = all(kind.absent in why for kind in KINDS.values())
        reasons.append(say("no GPU here") if is_absent else each.missing)
    recorded = {short_name(each.hardware) for pair in pairs for each in pair.gpus_elsewhere}
    if recorded:
        reasons.append(say("records", gpus=sorted(recorded)))
    return [each for each in dict.fromkeys(reasons) if each]


def _details(pair: Comparison, answer: Verdict) -> Details:
    diagnoses = [found for of_device in pair.diagnoses.values() for found in of_device]
    sections = [
        (title, found, say(title)) for title, table in _SECTIONS.items() if (found := table(pair))
    ]
    suggestions = [
        (
            remedy_line(each),
            prediction(each, found.run),
            "\n".join(commands(pair.experiment, each)),
        )
        for found in diagnoses
        for each in found.remedies
    ]
    return Details(answer, suggestions, sections, _pictures_of(pair, answer.decision))


def _pictures_of(pair: Comparison, decision: Decision) -> list[Picture]:
    if not find_spec("matplotlib"):
        return []
    from photofinish.reporting.job_pictures import job_pictures

    return job_pictures(pair, decision)
