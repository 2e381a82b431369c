"""The report: one page, Markdown for a pull request, CSV files, and files for DVC."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from importlib.util import find_spec
from itertools import accumulate, chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from photofinish.answer.record import Job, JobRecord, grid, short_name
from photofinish.config.kinds import KINDS
from photofinish.files import to_csv, to_json, write_text_atomically
from photofinish.reporting import causes, tables
from photofinish.reporting.answer_words import legend, phrase
from photofinish.reporting.answers import ANSWERS, Answers, answer_of
from photofinish.reporting.page import Table, template
from photofinish.reporting.say import say
from photofinish.reporting.sentences import Verdict, verdict
from photofinish.reporting.tables import Rows, is_known
from photofinish.results import EpochMetrics

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
MOST_MARKDOWN_CHARACTERS = 60_000
"""GitHub accepts comments of up to 65,536 characters."""
_SPREADSHEET_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_RUN = ("experiment", "device", "run")
FILES: dict[str, tuple[str, ...]] = {
    "comparison.csv": tables.CSV_COLUMNS,
    "history.csv": (
        *(column.name for column in fields(EpochMetrics)), "training_seconds_so_far", *_RUN,
    ),
    "confusion.csv": (*_RUN, "actual", "predicted", "images"),
}  # fmt: skip
"""Columns of each of the report's CSV files."""


@dataclass(frozen=True)
class Page:
    html: str
    answers: Answers
    verdicts: list[Verdict]
    pictures: list[Picture]


def page_of(jobs: Sequence[JobRecord], command: Sequence[str] | None = None) -> Page:
    """Return the page. Without matplotlib, it has no pictures.

    `command` is that of `action_text`.
    """
    verdicts = [verdict(job, command) for job in jobs]
    drawn, of_jobs = _pictures(jobs)
    answers = _answers(verdicts, is_asked=command is not None)
    html = template("report.html.j2").render(
        answers=answers,
        jobs=jobs,
        say=say,
        pictures=drawn,
        shown_jobs=[*zip(verdicts[:MOST_SHOWN], of_jobs, strict=True)],
        sections=_SECTIONS,
        causes=causes,
        has_files=command is None,
    )
    return Page(html, answers, verdicts, [*drawn, *chain(*of_jobs)])


def _pictures(jobs: Sequence[JobRecord]) -> tuple[list[Picture], list[list[Picture]]]:
    shown, over_two_settings = jobs[:MOST_SHOWN], grid(jobs)
    if not find_spec("matplotlib"):
        return [], [[] for _ in shown]
    from photofinish.reporting.pictures import all_jobs, heat_map, job_pictures

    heat_maps = [heat_map(over_two_settings)] if over_two_settings else []
    return [all_jobs(shown), *heat_maps], [job_pictures(job) for job in shown]


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


def summary(jobs: Sequence[JobRecord]) -> str:
    """Return the jobs of each phrase: `No, don't rent: digits-cnn, digits-mlp.`"""
    names_of: dict[str, list[str]] = defaultdict(list)
    for job in jobs:
        names_of[phrase(job.worth)].append(job.name)
    return " ".join(say("named", phrase=text, jobs=names) for text, names in names_of.items())


def _reasons(jobs: Sequence[JobRecord]) -> list[str]:
    reasons = []
    for why in (job.why_no_gpu for job in jobs if job.why_no_gpu):
        is_absent = all(kind.absent in why for kind in KINDS.values())
        reasons.append(say("no GPU here") if is_absent else say("missing", why=why))
    if recorded := {short_name(gpu.hardware) for job in jobs for gpu in job.gpus_elsewhere}:
        reasons.append(say("records", gpus=sorted(recorded)))
    return [*dict.fromkeys(reasons)]


def write_report(jobs: Sequence[JobRecord], folder: Path) -> Answers:
    rows_of = tables.comparison_rows(jobs), history_rows(jobs), confusion_rows(jobs)
    for (name, columns), rows in zip(FILES.items(), rows_of, strict=True):
        cells = (map(_cell, row.values()) for row in rows)
        write_text_atomically(folder / name, to_csv(columns, cells))
    page = page_of(jobs)
    for picture in page.pictures:
        _write(folder / "figures" / f"{picture.name}.svg", picture.file)
    write_text_atomically(folder / "index.html", page.html)
    markdown = template("comparison.md.j2")
    text = markdown.render(answers=page.answers, verdicts=page.verdicts, say=say)
    if len(text) > MOST_MARKDOWN_CHARACTERS:
        text = text[: text.rindex("\n", 0, MOST_MARKDOWN_CHARACTERS)] + f"\n\n{say('cut')}\n\n"
    text += "</details>\n" if "<details>" in text else ""
    write_text_atomically(folder / "comparison.md", text)
    write_text_atomically(folder / ANSWERS, f"{page.answers.model_dump_json(indent=2)}\n")
    return page.answers


def write_for_dvc(jobs: Sequence[JobRecord], folder: Path, metrics: Path, plots: Path) -> None:
    """Write the files that `dvc metrics` and `dvc plots` show, which Git keeps."""
    for job in jobs:
        if figures := tables.comparison_metrics(job):  # DVC shows each file as a row
            _write(metrics / f"{job.name}.json", to_json(figures))
    plots.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        shutil.copy(folder / name, plots)


def _write(path: Path, text: str) -> None:
    """Write a file without syncing the disk, because there may be many files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def history_rows(jobs: Iterable[JobRecord]) -> Rows:
    return [
        asdict(epoch) | {"training_seconds_so_far": training_seconds} | _names(job, run)
        for job in jobs
        for run in job.runs
        if (model := run.trained)
        for epoch, training_seconds in zip(
            model.history,
            accumulate(timing.training_seconds for timing in model.epochs),
            strict=True,
        )
    ]


def confusion_rows(jobs: Iterable[JobRecord]) -> Rows:
    return [
        _names(job, run) | {"actual": actual, "predicted": predicted, "images": count}
        for job in jobs
        for run in job.runs
        if (model := run.trained)
        for actual, counts in zip(model.class_names, model.scores.confusion, strict=False)
        for predicted, count in zip(model.class_names, counts, strict=True)
    ]


def _names(job: JobRecord, run: Job) -> dict[str, Any]:
    """Return experiment, device, and both joined, for tools that group by a single column."""
    return {"experiment": job.name, "device": run.device, "run": f"{job.name} {run.device}"}


def _cell(value: object) -> object:
    """Return a cell. Before text that looks like a formula, it has an apostrophe."""
    if isinstance(value, str) and value.startswith(_SPREADSHEET_FORMULA):
        return f"'{value}"
    return value if is_known(value) else None
