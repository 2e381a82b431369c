"""Write the report: one page, Markdown for a pull request, CSV files, and files for DVC."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from photofinish.answer.candidates import short_name
from photofinish.answer.comparison import Comparison
from photofinish.answer.decision import decide_all
from photofinish.answer.remedies import Remedy
from photofinish.answer.scaling import all_series, grid, shared_trainings
from photofinish.files import to_json, write_text_atomically
from photofinish.reporting import rows, tables
from photofinish.reporting.answer_records import answer_record
from photofinish.reporting.answer_words import headline, legend
from photofinish.reporting.answer_words import summary as summary_of
from photofinish.reporting.answers import Answers, write_answers
from photofinish.reporting.answers_picture import all_jobs, heat_map
from photofinish.reporting.causes import commands, prediction, remedy_line
from photofinish.reporting.comparison_rows import comparison_metrics, comparison_rows
from photofinish.reporting.drawing import Picture
from photofinish.reporting.figures_table import figures_table
from photofinish.reporting.job_pictures import job_pictures
from photofinish.reporting.page import Table, template
from photofinish.reporting.sentences import Verdict, shared_model, verdict
from photofinish.reporting.templates import say
from photofinish.results.job_times import JobTimes
from photofinish.wording import markdown_text

MOST_SHOWN = 30
"""Maximum number of experiments with details on the page."""
MOST_MARKDOWN_CHARACTERS = 60_000
"""GitHub accepts comments of up to 65,536 characters."""
FIGURES = "figures"
_SECTIONS: dict[str, Callable[[Comparison], Table]] = {
    "Speed-ups": tables.speedup_table,
    "Where a loader's time goes": tables.loader_table,
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
_OF_LOADING = ("Where a loader's time goes", "Loading with more workers")
"""Titles of tables that are shown only where an epoch waits for its loader."""


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


def write_report(
    pairs: list[Comparison],
    folder: Path,
    scripts: Sequence[Comparison] = (),
) -> Answers:
    """Write all files of the report, and return the answers."""
    everything: list[Comparison] = [*pairs, *scripts]
    decisions = decide_all(everything)
    verdicts = [
        verdict(pair, decision) for pair, decision in zip(everything, decisions, strict=True)
    ]
    for former in folder.glob("*.csv"):  # an older photofinish wrote more
        former.unlink()
    csv_rows = comparison_rows(everything, decisions), rows.history_rows(pairs)
    for name, each in zip(rows.COLUMNS, (*csv_rows, rows.confusion_rows(pairs)), strict=True):
        write_text_atomically(folder / name, rows.as_csv(name, each))
    shutil.rmtree(folder / FIGURES, ignore_errors=True)
    shown = everything[:MOST_SHOWN]
    details = [_details(*each) for each in zip(shown, verdicts, strict=False)]
    found = grid(pairs, decisions[: len(pairs)])
    drawn = [all_jobs(shown, decisions[: len(shown)])]
    drawn += [heat_map(found)] if found else []
    for picture in [*drawn, *(picture for each in details for picture in each.pictures)]:
        _write(folder / FIGURES / f"{picture.name}.svg", picture.file)
    overview = tables.overview_table(verdicts, everything)
    summary = summary_of(decisions)
    answers = _answers(everything, verdicts, summary, overview)
    page = template("report.html.j2").render(
        summary=summary,
        legend=answers.legend,
        shared_model=shared_model(verdicts),
        verdicts=verdicts[:MOST_SHOWN],
        reasons=_reasons(verdicts),
        is_compared=any(pair.gpu for pair in pairs),
        records=_records(pairs),
        headline=headline,
        overview=overview,
        pictures=drawn,
        shared={
            say("several devices"): tables.sharing_table(shared_trainings(pairs)),
            say("by size"): tables.series_table(all_series(pairs)),
        },
        details=details,
        has_experiments=bool(pairs),
        has_scripts=bool(scripts),
    )
    write_text_atomically(folder / "index.html", page)
    write_text_atomically(folder / "comparison.md", _markdown(answers, verdicts))
    write_answers(folder, answers)
    return answers


def _answers(
    pairs: Sequence[Comparison], verdicts: list[Verdict], summary: str, overview: Table
) -> Answers:
    """Return the answers alone, without evidence."""
    shared = shared_model(verdicts)
    answers = {
        pair.experiment: answer_record(pair, each, shared)
        for pair, each in zip(pairs, verdicts, strict=True)
    }
    not_worth_renting = [
        each.experiment
        for each in verdicts
        if not each.decision.is_here and each.decision.answer == "No"
    ]
    texts = [line for each in answers.values() for line in each.lines]
    decisions = [each.decision for each in verdicts]
    return Answers(
        summary=summary,
        answers=answers,
        not_worth_renting=tuple(not_worth_renting),
        reasons=tuple(_reasons(verdicts)),
        legend=tuple(legend(decisions, texts, shared)),
        overview=tuple(overview),
    )


def _reasons(verdicts: list[Verdict]) -> list[str]:
    """Return the different reasons why there was no GPU."""
    return list(dict.fromkeys(each.missing for each in verdicts if each.missing))


def _records(pairs: Sequence[Comparison]) -> str:
    """Return a sentence on the GPUs of other machines' records, or an empty text."""
    records = [each for pair in pairs for each in pair.references]
    gpus = {short_name(each.hardware) for each in records if each.training.device == "gpu"}
    return say("records", gpus=sorted(gpus)) if gpus else ""


def _details(pair: Comparison, answer: Verdict) -> Details:
    diagnoses = [found for of_device in pair.diagnoses.values() for found in of_device]
    is_loading = any("input-bound" in (found.cause, found.likely) for found in diagnoses)
    sections = [
        (title, found, say(title))
        for title, table in _SECTIONS.items()
        if (is_loading or title not in _OF_LOADING) and (found := table(pair))
    ]
    drawn, left_out = job_pictures(pair, answer.decision)
    suggestions = [
        _suggestion(pair.experiment, each, found.run.timings)
        for found in diagnoses
        for each in found.remedies
    ]
    notes = [*left_out, *filter(None, [tables.loader_note(pair)])]
    return Details(answer, suggestions, sections, drawn, notes)


def _suggestion(experiment: str, remedy: Remedy, times: JobTimes) -> tuple[str, str, str]:
    tries = "\n".join(commands(experiment, remedy))
    return remedy_line(remedy), prediction(remedy, times), tries


def write_for_dvc(pairs: Sequence[Comparison], folder: Path, metrics: Path, plots: Path) -> None:
    """Write the files that `dvc metrics` and `dvc plots` show, which Git keeps."""
    for former in (metrics, plots):
        shutil.rmtree(former, ignore_errors=True)
    for experiment, figures in comparison_metrics(pairs).items():
        _write(metrics / f"{experiment}.json", to_json(figures))  # DVC shows each file as a row
    plots.mkdir(parents=True)
    for name in rows.COLUMNS:
        shutil.copy(folder / name, plots)


def _write(path: Path, text: str) -> None:
    """Write a file without syncing the disk, because there may be many files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _markdown(answers: Answers, verdicts: list[Verdict]) -> str:
    """Return the answers with their evidence, cut to the length of a comment on GitHub."""
    lines = ["# photofinish", "", answers.summary, ""]
    for each in verdicts:
        first, second = answers.answers[each.experiment].lines
        lines.append(f"* **{markdown_text(each.experiment)}**: {markdown_text(first)}")
        lines += ["", f"  **{markdown_text(second)}**", ""]
    lines += [line for each in answers.legend for line in (markdown_text(each), "")]
    lines += [line for each in answers.reasons for line in (markdown_text(each), "")]
    for each in verdicts:
        evidence = [*([each.busy] if each.busy else []), *each.cautions, *each.details]
        lines += [f"## {markdown_text(each.experiment)}", ""] if evidence else []
        lines += [f"* {markdown_text(line)}" for line in evidence] + ([""] if evidence else [])
    text = ""
    for line in lines:
        if len(text) + len(line) > MOST_MARKDOWN_CHARACTERS:
            return "\n".join((text, say("cut"), ""))
        text += f"{line}\n"
    return text
