"""Write the report: one page, Markdown for a pull request, CSV files, and what DVC shows."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import jinja2
from markupsafe import Markup, escape

from photofinish.comparing.pairs import Comparison
from photofinish.comparing.scaling import all_series, shared_trainings
from photofinish.files import to_json, write_text_atomically
from photofinish.report import pictures, rows, tables, words
from photofinish.report.pictures import Picture
from photofinish.report.rows import Rows
from photofinish.report.sentences import Verdict, commands, prediction, remedy_line, verdict
from photofinish.report.tables import ShadedTable, Table
from photofinish.wording import markdown_text

MOST_SHOWN = 30
"""Experiments with details on the page."""
MOST_MARKDOWN_CHARACTERS = 60_000
"""GitHub takes comments of up to 65,536."""
FIGURES = "figures"
_NUMBER = re.compile(r"(≤ )?-?[\d,]*\.?\d+( ?(µs|ms|s|%|x))?( \([\d.]+%\))?")
_CODE = re.compile(r"`([^`]+)`")
_TABLES: dict[str, Callable[[list[Comparison]], Table]] = {
    "Speed-ups": tables.speedup_table,
    "What no GPU can shorten": tables.ceiling_table,
    "Which to rent": tables.renting_table,
    "Why": tables.why_table,
    "Is it the same model?": tables.parity_table,
    "Several seeds": tables.seeds_table,
    "When does it pay?": tables.paying_table,
    "Recorded elsewhere": tables.elsewhere_table,
    "Figures": lambda pairs: tables.figures_table(pairs[0]),
}


@dataclass(frozen=True)
class Details:
    """What the page shows of one experiment."""

    verdict: Verdict
    remedies: list[tuple[str, str, tuple[str, str]]]
    """Each suggestion: line of params.yaml, predicted gain, and the commands that try it."""
    tables: dict[str, Table]
    pictures: list[Picture]
    steps: ShadedTable | None
    confusions: list[ShadedTable]


def write_report(pairs: list[Comparison], folder: Path) -> list[Verdict]:
    """Write all files of the report, and return a verdict for each experiment."""
    series, shared = all_series(pairs), shared_trainings(pairs)
    files: dict[str, Rows] = {
        "comparison.csv": rows.comparison_rows(pairs),
        "history.csv": rows.history_rows(pairs),
        "confusion.csv": rows.confusion_rows(pairs),
        "speedups.csv": rows.speedup_rows(pairs),
        "seeds.csv": rows.seed_rows(pairs),
        "attribution.csv": rows.attribution_rows(pairs),
        "scaling.csv": rows.scaling_rows(series),
        "sharing.csv": rows.sharing_rows(shared),
        "elsewhere.csv": rows.elsewhere_rows(pairs),
        "renting.csv": rows.renting_rows(pairs),
    }
    for name, found in files.items():
        write_text_atomically(folder / name, rows.as_csv(found, rows.COLUMNS[name]))
    verdicts = [verdict(pair) for pair in pairs]
    drawn = pictures.speedup_pictures(files["speedups.csv"])
    break_evens = {(each.name, each.x_name): each.break_even for each in series[:MOST_SHOWN]}
    drawn += pictures.break_even_pictures(rows.scaling_rows(series[:MOST_SHOWN]), break_evens)
    if len(pairs) > 1 and (picture := pictures.time_and_accuracy(files["comparison.csv"])):
        drawn.append(picture)
    details = [_details(*each) for each in list(zip(pairs, verdicts, strict=True))[:MOST_SHOWN]]
    shutil.rmtree(folder / FIGURES, ignore_errors=True)
    for picture in [*drawn, *(picture for each in details for picture in each.pictures)]:
        _write(folder / FIGURES / f"{picture.name}.svg", picture.file)
    overview = tables.overview_table(pairs)
    page = _template().render(
        words=words,
        counts=words.counts(verdicts),
        reasons=dict.fromkeys(each.missing for each in verdicts if each.missing),
        overview=overview,
        pictures=drawn,
        shared={
            "What several devices gain": tables.sharing_table(shared),
            "Where the GPU begins to pay, by size": tables.series_table(series),
        },
        details=details,
    )
    write_text_atomically(folder / "index.html", page)
    write_text_atomically(folder / "comparison.md", _markdown(verdicts, overview))
    return verdicts


def _details(pair: Comparison, answer: Verdict) -> Details:
    found = {title: table([pair]) for title, table in _TABLES.items()}
    remedies = [each.remedy for diagnoses in pair.diagnoses.values() for each in diagnoses if each.remedy]
    return Details(
        answer,
        [(remedy_line(each), prediction(each), commands(pair.experiment, each)) for each in remedies],
        {title: table for title, table in found.items() if table},
        pictures.learning_curves(rows.history_rows([pair])),
        tables.step_parts(pair),
        tables.confusions(pair),
    )


def write_for_dvc(pairs: list[Comparison], folder: Path, metrics: Path, plots: Path) -> None:
    """Write what DVC shows of the report in `folder`, where Git keeps it."""
    for former in (metrics, plots):
        shutil.rmtree(former, ignore_errors=True)
    for experiment, figures in rows.comparison_metrics(pairs).items():  # DVC makes a row of each file
        _write(metrics / f"{experiment}.json", to_json(figures))
    plots.mkdir(parents=True)
    for name in ("history.csv", "confusion.csv", "speedups.csv"):
        shutil.copy(folder / name, plots)


def _write(path: Path, text: str) -> None:
    """Write without forcing it to the disk, as there may be many."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _markdown(verdicts: list[Verdict], overview: Table) -> str:
    """Return the answers and the overview, as far as they fit into a comment on GitHub."""
    lines = ["# photofinish", "", words.counts(verdicts), ""]
    lines += ["| " + " | ".join(overview[0]) + " |", "|" + " --- |" * len(overview[0])]
    lines += ["| " + " | ".join(map(markdown_text, row.values())) + " |" for row in overview]
    lines.append("")
    for reason in dict.fromkeys(each.missing for each in verdicts if each.missing):
        lines += [f"Why no GPU: {markdown_text(reason)}", ""]
    for each in verdicts:
        lines.append(f"* **{markdown_text(each.experiment)}**: {markdown_text(each.answer)}")
        lines += [f"  * {markdown_text(detail)}" for detail in (*each.cautions, *each.details)]
    text = ""
    for line in lines:
        if len(text) + len(line) > MOST_MARKDOWN_CHARACTERS:
            return f"{text}\n{words.CUT_OFF}\n"
        text += f"{line}\n"
    return text


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("photofinish.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"number_columns": number_columns}
    environment.filters |= {"with_code": _with_code}
    return environment.get_template("report.html.j2")


def _with_code(text: str) -> Markup:
    """Mark up what stands between backticks as code."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(text))))  # noqa: S704


def number_columns(table: Table) -> set[str]:
    """Return the headings of columns of figures: these are flush right, and sorted by value."""
    columns = {heading: [row[heading] for row in table if row[heading] != tables.NOTHING] for heading in table[0]}
    return {heading for heading, cells in columns.items() if cells and all(map(_NUMBER.fullmatch, cells))}
