"""Write the report: one page, Markdown for a pull request, CSV files, and files for DVC."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from photofinish.answer.comparison import Comparison
from photofinish.answer.decision import decide_all
from photofinish.files import to_json, write_text_atomically
from photofinish.reporting import rows
from photofinish.reporting.answers import Answers, write_answers
from photofinish.reporting.comparison_rows import comparison_metrics, comparison_rows
from photofinish.reporting.report_page import page_of
from photofinish.reporting.say import say
from photofinish.reporting.sentences import Verdict
from photofinish.wording import markdown_text

MOST_MARKDOWN_CHARACTERS = 60_000
"""GitHub accepts comments of up to 65,536 characters."""


def write_report(
    pairs: Sequence[Comparison], folder: Path, scripts: Sequence[Comparison] = ()
) -> Answers:
    everything = [*pairs, *scripts]
    decisions = decide_all(everything)
    csv_rows = comparison_rows(everything, decisions), rows.history_rows(pairs)
    for name, each in zip(rows.COLUMNS, (*csv_rows, rows.confusion_rows(pairs)), strict=True):
        write_text_atomically(folder / name, rows.as_csv(name, each))
    page = page_of(everything, decisions)
    for picture in page.pictures:
        _write(folder / "figures" / f"{picture.name}.svg", picture.file)
    write_text_atomically(folder / "index.html", page.html)
    write_text_atomically(folder / "comparison.md", _markdown(page.answers, page.verdicts))
    write_answers(folder, page.answers)
    return page.answers


def write_for_dvc(pairs: Sequence[Comparison], folder: Path, metrics: Path, plots: Path) -> None:
    """Write the files that `dvc metrics` and `dvc plots` show, which Git keeps."""
    for experiment, figures in comparison_metrics(pairs).items():
        _write(metrics / f"{experiment}.json", to_json(figures))  # DVC shows each file as a row
    plots.mkdir(parents=True, exist_ok=True)
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
