"""The answers alone: written with the report, and shown in a notebook by `photofinish.report()`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from photofinish.errors import UserError
from photofinish.files import OWN_FOLDER, write_text_atomically
from photofinish.reporting.columns import Table
from photofinish.reporting.page import template
from photofinish.reporting.sentences import Verdict

if TYPE_CHECKING:
    import pandas as pd

ANSWERS = "answers.json"
_MOST_SENTENCES = 3
"""Answers that stand in full below the table."""


@dataclass(frozen=True, repr=False)
class Answers:
    """Answers of a report. A notebook shows them as a table."""

    summary: str
    """One answer over all experiments."""
    answers: dict[str, str]
    """Answer of each experiment, with its number and reason."""
    actions: dict[str, str]
    """What to do now for each experiment."""
    not_worth_renting: list[str]
    """Experiments for which a rented GPU is not, or probably not, worth it."""
    reasons: list[str]
    """Sentences why no GPU trained."""
    overview: Table
    """A row for each experiment."""

    @property
    def table(self) -> pd.DataFrame:
        """All figures, with a row for each experiment and device: comparison.csv."""
        import pandas as pd

        return pd.read_csv(_report() / "comparison.csv")

    def __repr__(self) -> str:
        lines = [f"{name}: {text} {self.actions[name]}" for name, text in self.answers.items()]
        return "\n".join([self.summary, *lines] if len(lines) > 1 else lines)

    def _repr_html_(self) -> str:
        is_short = len(self.answers) <= _MOST_SENTENCES
        return template("answers.html.j2").render(report=self, is_short=is_short)


def write_answers(
    folder: Path, summary: str, verdicts: Sequence[Verdict], reasons: list[str], overview: Table
) -> None:
    """Write the answers beside the report."""
    answers = {each.experiment: each.answer for each in verdicts}
    actions = {each.experiment: each.action for each in verdicts}
    not_worth_renting = []
    for each in verdicts:
        rented = each.decision.rented
        if rented and rented.answer in ("No", "Probably no"):
            not_worth_renting.append(each.experiment)
    written = Answers(summary, answers, actions, not_worth_renting, reasons, overview)
    content = json.dumps(asdict(written), indent=2)
    write_text_atomically(folder / ANSWERS, f"{content}\n")


def read_answers() -> Answers:
    """Read the answers of the project in the current folder."""
    try:
        content = (_report() / ANSWERS).read_text(encoding="utf-8")
    except FileNotFoundError:
        problem = f"nothing is compared in {Path.cwd()} yet"
        raise UserError(f"{problem}: run `photofinish run` there first") from None
    return Answers(**json.loads(content))


def _report() -> Path:
    """Return the folder of the report, which may lie in a folder of ours."""
    here = Path("report")
    return here if (here / ANSWERS).is_file() else OWN_FOLDER / here
