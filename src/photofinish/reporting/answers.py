"""Answers without evidence: written with the report, for programs and `photofinish.report()`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import ValidationError

from photofinish.config.base import Record
from photofinish.errors import UserError
from photofinish.files import OWN_FOLDER, write_text_atomically
from photofinish.reporting.answer_records import AnswerRecord
from photofinish.reporting.page import template

if TYPE_CHECKING:
    import pandas as pd

ANSWERS = "answers.json"
_WIDEST_NAME = 24
"""Width of the column of names. Longer names have a line of their own."""


class Answers(Record):
    """Answers of a report: report/answers.json. A notebook shows them as a table."""

    schema_version: Literal[4] = 4
    summary: str
    """One answer over all experiments."""
    answers: dict[str, AnswerRecord]
    """Answer for each experiment and script."""
    reasons: tuple[str, ...]
    """Sentences why no GPU trained, and which were measured elsewhere."""
    legend: tuple[str, ...]
    """Legend of all answers' lines, such as marks."""
    overview: tuple[dict[str, str], ...]
    """A row for each job, as the page shows it."""

    @property
    def table(self) -> pd.DataFrame:
        """Table of all figures, with a row for each experiment and device: comparison.csv."""
        import pandas as pd

        return pd.read_csv(_report() / "comparison.csv")

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        """Return the lines of each answer behind its name, then the legend."""
        width = max(map(len, self.answers), default=0) + 2
        width = min(width, _WIDEST_NAME)
        texts = []
        for name, answer in self.answers.items():
            first, second = answer.lines
            if len(name) + 2 > width:
                texts += [name, f"{'':{width}}{first}"]
            else:
                texts.append(f"{name:{width}}{first}")
            texts.append(f"{'':{width}}{second}")
        return "\n".join([*texts, *self.legend])

    def _repr_html_(self) -> str:
        return template("answers.html.j2").render(report=self)


def write_answers(folder: Path, answers: Answers) -> None:
    write_text_atomically(folder / ANSWERS, f"{answers.model_dump_json(indent=2)}\n")


def read_answers() -> Answers:
    """Read the answers of the project in the current folder."""
    try:
        content = (_report() / ANSWERS).read_text(encoding="utf-8")
    except FileNotFoundError:
        problem = f"nothing is compared in {Path.cwd()} yet"
        raise UserError(f"{problem}: run `photofinish run` there first") from None
    try:
        return Answers.model_validate_json(content)
    except ValidationError:
        older = f"report/{ANSWERS} is of another photofinish"
        raise UserError(f"{older}: `photofinish run` writes it again") from None


def _report() -> Path:
    """Return the folder of the report, which may be in the folder photofinish/."""
    here = Path("report")
    return here if (here / ANSWERS).is_file() else OWN_FOLDER / here
