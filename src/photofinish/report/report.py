"""The comparison as a page that stands alone, as Markdown for a pull request, and as files for pandas and DVC."""

from __future__ import annotations

import argparse
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import chain
from pathlib import Path

import jinja2
from markupsafe import Markup, escape

from photofinish.comparing.pairs import Pair, read_pair, set_beside
from photofinish.comparing.scaling import Series, all_series, shared_trainings
from photofinish.comparing.verdict import Verdict, verdict
from photofinish.errors import MistakeError, run_stage
from photofinish.files import folders_with_results, to_json, write_text_atomically
from photofinish.params.base import read_plan
from photofinish.params.compare import ComparePlan
from photofinish.report import pictures, rows, tables
from photofinish.report.drawing import Picture
from photofinish.report.rows import Rows
from photofinish.report.tables import Table
from photofinish.results import records
from photofinish.results.references import read_references
from photofinish.wording import markdown_text

FIGURES, EXPERIMENTS = "figures", "experiments"
_LONG = {
    "history.csv": rows.history_rows,
    "confusion.csv": rows.confusion_rows,
    "attribution.csv": rows.attribution_rows,
}
"""of the report's files, those with many rows of each experiment, which only its own page shows"""
_Part = tuple[str, dict[str, str]]
"""of one of many experiments, its own page, and its lines of those files"""
MOST_ON_ONE_PAGE = 20
"""experiments; of more, each has a page of its own behind an overview"""
_NUMBER = re.compile(r"-?[\d,]*\.?\d+( ?(µs|ms|s|%|x))?( \([\d.]+%\))?")
_CODE = re.compile(r"`([^`]+)`")
_MOST_SHOWN = 100
"""characters of a cell"""
GLOSSARY = {
    "step (median)": "one batch through the network and back, and the weights changed by it; its data at hand",
    "epoch (median)": "once through all training images, loading included; validation isn't in it",
    "images/s": "training images over the median epoch",
    "start-up": "from the start of the program to the first timed step: imports, data, warm-up",
    "total": "the whole job: start-up, every epoch with its validation, checkpoints",
    "between epochs": "what the loop spent on display, checkpoints and MLflow, and that against its timed passes",
    "speed-up": "the CPU's time over the GPU's: 2 is half the time, and below 1 the GPU is slower",
    "95 % interval": "measured again, the figure would be in here 19 times in 20; one that spans 1 names no winner",
    "95 % interval of it": "of the mean over all seeds there are: measured again, it would be in here 19 times in 20",
    "between two seeds": "how far the same training ends from itself when only chance differs",
    "cause": "what an epoch, or the job, mostly waits for",
    "predicted gain": "how many times as fast the remedy should make it, tried on some steps or worked out",
    "sure to stay": "of the time, what even a GPU that takes no time would leave on the CPU of this machine",
    "a GPU at most (bound)": "no GPU in this machine is faster; how near one comes isn't known",
    "fits, memory at least": "no is sure: a step holds more; yes leaves room for half as much again as was kept here",
    "a step at least": "by the data sheet; in brackets what holds it: arithmetic, memory, kernels that start, the link",
    "an epoch at most": "so many times as fast as the CPU's, in this machine; a bound, which no PyTorch program beats",
    "the job at least": "with the start-up and loading that are sure to stay on this machine's CPU; a bound",
    "an hour": "of a whole machine: your price, or the lowest that is listed, with its day",
    "McNemar's test": "whether one of two networks is right more often, on the same images, than chance explains",
    "repaid": "a GPU starts later; from so many epochs on its shorter ones have made up for that",
    "to be taken with care": "the machine was busy with other things, or the GPU held its clock down",
}
"""shown where one points at a table's heading, and in a list of their own"""


@dataclass(frozen=True)
class Gallery:
    """Pictures of one kind, below one heading."""

    title: str
    note: str
    """how to read them"""
    file: str
    """which of the report's files holds what is drawn"""
    pictures: list[Picture]


@dataclass(frozen=True)
class Report:
    """All that a page and the Markdown tell, in its order; what would be empty is left out."""

    pairs: list[Pair]
    galleries: list[Gallery]
    tables: dict[str, Table]
    """by title"""
    matrices: dict[str, list[Picture]] = field(default_factory=dict)
    """by experiment, a picture for each device; folded away where there are many"""
    overview: Table = field(default_factory=list)
    """of many experiments, whose rest is on pages of their own"""
    is_one_of_many: bool = False

    @property
    def title(self) -> str:
        """What it answers, or the experiment's name on a page of its own."""
        return self.pairs[0].experiment if self.is_one_of_many else "Is the GPU worth it?"

    @cached_property
    def verdicts(self) -> list[Verdict]:
        """One for each experiment."""
        return [verdict(pair) for pair in self.pairs]

    @property
    def recorded_elsewhere(self) -> list[str]:
        """The hardware that others' records are of."""
        return sorted({found.hardware for pair in self.pairs for found in pair.elsewhere})

    @property
    def reasons(self) -> list[str]:
        """Why devices were missing, each reason once."""
        return list(dict.fromkeys(each.missing for each in self.verdicts if each.missing))

    @property
    def counts(self) -> str:
        """How often each answer was found."""
        found = Counter(each.short for each in self.verdicts).most_common()
        return f"{len(self.verdicts)} experiments. The GPU: {', '.join(f'{short} {count}' for short, count in found)}."


def write_report(pairs: list[Pair], folder: Path, run_began_at_unix_seconds: float | None = None) -> list[Verdict]:
    """Write every file of the report; return the verdicts, one for each experiment."""
    series = all_series(pairs)
    for former in (FIGURES, EXPERIMENTS):  # none is left of another report
        shutil.rmtree(folder / former, ignore_errors=True)
    files = {
        "comparison.csv": rows.comparison_rows(pairs, run_began_at_unix_seconds),
        "speedups.csv": rows.speedup_rows(pairs),
        "seeds.csv": rows.seed_rows(pairs),
        "scaling.csv": rows.scaling_rows(series),
        "sharing.csv": rows.sharing_rows(shared_trainings(pairs)),
        "elsewhere.csv": rows.elsewhere_rows(pairs),
        "renting.csv": rows.renting_rows(pairs),
    }
    texts = _texts(files)
    if len(pairs) <= MOST_ON_ONE_PAGE:
        long = _long_rows(pairs)
        report = _whole(pairs, series, files | long)
        texts |= _texts(long)
    else:
        report = _overview(pairs, series, files)
        parts = list(_parts(pairs, series, files))
        for pair, (page, _) in zip(pairs, parts, strict=True):
            _write(folder / EXPERIMENTS / f"{pair.experiment}.html", page)
        texts |= {name: _joined([own[name] for _, own in parts]) for name in _LONG}
    for name, text in texts.items():
        write_text_atomically(folder / name, text)
    drawn = [gallery.pictures for gallery in report.galleries] + list(report.matrices.values())
    for picture in chain.from_iterable(drawn):  # for MLflow and for documents
        _write(folder / FIGURES / f"{picture.name}.svg", picture.file)
    write_text_atomically(folder / "comparison.md", _as_markdown(report))
    write_text_atomically(folder / "index.html", _template().render(report=report))
    return report.verdicts


def _parts(pairs: list[Pair], series: list[Series], files: dict[str, Rows]) -> Iterator[_Part]:
    series_of = defaultdict(list)
    for each in series:
        for point in each.points:
            series_of[point.experiment].append(each)
    figures = {name: rows.grouped(files[name], "experiment") for name in ("comparison.csv", "speedups.csv")}
    for pair in pairs:
        own = {file: found.get((pair.experiment,), []) for file, found in figures.items()}
        yield _part(pair, series_of[pair.experiment], own)


def _part(pair: Pair, series: list[Series], files: dict[str, Rows]) -> _Part:
    long = _long_rows([pair])
    report = replace(_whole([pair], series, files | long), is_one_of_many=True)
    return _template().render(report=report), _texts(long)


def _long_rows(pairs: list[Pair]) -> dict[str, Rows]:
    return {name: rows_of(pairs) for name, rows_of in _LONG.items()}


def _texts(files: dict[str, Rows]) -> dict[str, str]:
    return {name: rows.as_csv(found, rows.COLUMNS[name]) for name, found in files.items()}


def _joined(tables: list[str]) -> str:
    """As one, with the heading of the first."""
    return tables[0] + "".join(table.partition("\n")[2] for table in tables[1:])


def write_for_dvc(pairs: list[Pair], folder: Path, metrics: Path, plots: Path) -> None:
    """What DVC shows of the report in `folder`, where Git keeps it: it may keep nothing of a folder of DVC's."""
    for former in (metrics, plots):
        shutil.rmtree(former, ignore_errors=True)
    for experiment, figures in rows.comparison_metrics(pairs).items():  # DVC makes a row of each
        _write(metrics / f"{experiment}.json", to_json(figures))
    plots.mkdir(parents=True)
    for name in ("history.csv", "confusion.csv", "speedups.csv"):
        shutil.copy(folder / name, plots)


def _write(path: Path, text: str) -> None:
    """Without forcing it to the disk, as there may be thousands of them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _whole(pairs: list[Pair], series: list[Series], files: dict[str, Rows]) -> Report:
    """Everything that is known of these experiments; what is in the report's files of them is given."""
    shown = {
        "Speed-ups": tables.speedup_table(pairs),
        "What no GPU can shorten": tables.ceiling_table(pairs),
        "Which to rent": tables.renting_table(pairs),
        "Why": tables.why_table(pairs),
        "Is it the same model?": tables.parity_table(pairs),
        "What chance does: several seeds": tables.seeds_table(pairs),
        "When does it pay?": tables.paying_table(pairs, series),
        "What several devices gain": tables.sharing_table(shared_trainings(pairs)),
        "Recorded elsewhere": tables.elsewhere_table(pairs),
        "All figures": tables.shown_table(files["comparison.csv"]),
        "Where and how often it was measured": tables.measured_table(pairs),
    }
    return Report(
        pairs,
        _galleries(pairs, series, files),
        {title: table for title, table in shown.items() if table},
        pictures.confusion_pictures(files["confusion.csv"]),
    )


def _overview(pairs: list[Pair], series: list[Series], files: dict[str, Rows]) -> Report:
    """What can be said of many experiments at once."""
    drawn = Gallery(
        "All of them",
        "Point at a mark for its name. Left and above is better; right of 1 the GPU is faster.",
        "comparison.csv",
        list(pictures.overview_pictures(files["comparison.csv"], files["speedups.csv"])),
    )
    by_size = {"Where the GPU begins to pay, by size": tables.series_table(series)} if series else {}
    return Report(pairs, [drawn], by_size, overview=tables.overview_table(pairs))


def _galleries(pairs: list[Pair], series: list[Series], files: dict[str, Rows]) -> list[Gallery]:
    drawn: list[tuple[str, str, str, Iterator[Picture]]] = [
        (
            "How much faster is the GPU?",
            "Right of 1 the GPU is faster. A line is the 95 % interval; a dot without one is open.",
            "speedups.csv",
            pictures.speedup_pictures(files["speedups.csv"]),
        ),
        (
            "Which to rent",
            "Diamonds are bounds by data sheets: the truth lies right of them and above. The dashed line joins those "
            "that no other is both quicker and cheaper than. Triangles are estimates; filled marks were measured.",
            "renting.csv",
            pictures.renting_pictures(pairs),
        ),
        (
            "Where a step's time goes",
            "Each part of a step, the clock waiting for the device after it, as a share of the whole.",
            "attribution.csv",
            pictures.step_pictures(files["attribution.csv"]),
        ),
        (
            "Where the GPU begins to pay",
            "The speed-up of an epoch, with its 95 % interval; above 1 the GPU is faster.",
            "scaling.csv",
            pictures.break_even_pictures(
                rows.scaling_rows(series), {(each.name, each.x_name): each.break_even for each in series}
            ),
        ),
        (
            "How they learned",
            "Validation loss: where devices' curves agree against epochs they learn alike; further left is sooner.",
            "history.csv",
            pictures.learning_curves(files["history.csv"]),
        ),
    ]
    galleries = [Gallery(title, note, file, list(each)) for title, note, file, each in drawn]
    return [gallery for gallery in galleries if gallery.pictures]


def _as_markdown(report: Report) -> str:
    lines = ["# photofinish", ""]
    if report.overview:
        lines.append(report.counts)
    else:
        for each in report.verdicts:
            lines.append(f"* **{markdown_text(each.experiment)}**: {markdown_text(each.answer)}")
            lines += [f"  * {markdown_text(detail)}" for detail in (*each.cautions, *each.details)]
    lines += [f"\nWhy no GPU: {markdown_text(reason)}" for reason in report.reasons]
    for title, table in {"All experiments": report.overview, **report.tables}.items():
        if table:
            lines += ["", f"## {title}", ""]
            lines += ["| " + " | ".join(table[0]) + " |", "|" + " --- |" * len(table[0])]
            lines += ["| " + " | ".join(map(markdown_text, row.values())) + " |" for row in table]
    return "\n".join(lines) + "\n"


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("photofinish.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"number_columns": number_columns, "glossary": GLOSSARY}
    environment.filters |= {"with_code": _with_code, "folded": _folded}
    return environment.get_template("report.html.j2")


def _with_code(text: str) -> Markup:
    """Lines of params.yaml, which stand between backticks, are set as such."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(text))))  # noqa: S704


def _folded(cell: str) -> Markup:
    """Of a long cell of several parts, the first is shown."""
    start, _, rest = cell.partition("; ")
    if len(cell) <= _MOST_SHOWN or not rest:
        return _with_code(cell)
    return Markup("<details><summary>{}</summary>{}</details>").format(_with_code(start), _with_code(rest))


def number_columns(table: Table) -> set[str]:
    """Which columns hold figures: these are set flush right, and sorted by value."""
    columns = {heading: [row[heading] for row in table if row[heading] != tables.NOTHING] for heading in table[0]}
    return {heading for heading, cells in columns.items() if cells and all(map(_NUMBER.fullmatch, cells))}


def pairs_of(folder: Path) -> list[Pair]:
    """The pairs of the project's folder or a sweep's; one of a sweep has its name in front of the experiment's."""
    plan, results = folder / "data" / "plan" / "compare.json", folder / "results"
    if not plan.is_file():
        return []
    settings = read_plan(plan, ComparePlan)
    pairs = [
        read_pair(f"{folder.name}.{name}" if folder.name else name, results / name)
        for name in settings.experiments
        if (results / name / records.EVALUATED / records.EVALUATION).is_file()
    ]
    return set_beside(pairs, settings, read_references(Path("reference"), settings.references))


def main() -> None:
    """One report over the project and its sweeps, of the experiments that have results: `make overview`."""
    parser = argparse.ArgumentParser(prog="python -m photofinish.report.report", description=main.__doc__)
    parser.add_argument("--out", type=Path, default=Path("sweeps/report"))
    args = parser.parse_args()
    pairs = [pair for folder in folders_with_results() for pair in pairs_of(folder)]
    if not pairs:
        raise MistakeError("neither the project nor a folder in sweeps/ has results: run `dvc repro` there first")
    write_report(pairs, args.out)
    print(f"{len(pairs)} experiments: {args.out / 'index.html'}")


if __name__ == "__main__":
    run_stage(main)
