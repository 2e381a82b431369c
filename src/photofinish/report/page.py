"""The report to read: a page that stands alone, and the same as Markdown for a pull request."""

from __future__ import annotations

import re
from dataclasses import dataclass

import jinja2
import pandas as pd
from markupsafe import Markup, escape

from photofinish.comparing.verdict import Verdict
from photofinish.report.drawing import Picture
from photofinish.wording import markdown_cell

_NUMBER = re.compile(r"-?[\d,]*\.?\d+( ?(µs|ms|s|%|x))?( \([\d.]+%\))?")
_CODE = re.compile(r"`([^`]+)`")
_NO_FIGURE = "n/a"


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
    """All that the page and the Markdown tell, in its order; what would be empty is left out."""

    verdicts: list[Verdict]
    galleries: list[Gallery]
    matrices: dict[str, list[Picture]]
    """by experiment, a picture for each device; folded away where there are many"""
    tables: dict[str, pd.DataFrame]
    """by title, all cells text"""
    measured: pd.DataFrame

    @property
    def reasons(self) -> list[str]:
        """Why devices were missing, each reason once."""
        return list(dict.fromkeys(each.missing for each in self.verdicts if each.missing))

    @property
    def pictures(self) -> list[Picture]:
        drawn = [picture for gallery in self.galleries for picture in gallery.pictures]
        return drawn + [picture for pictures in self.matrices.values() for picture in pictures]


def as_markdown(report: Report) -> str:
    lines = ["# photofinish", ""]
    for each in report.verdicts:
        lines += [f"* **{each.experiment}**: {each.answer}", *(f"  * {detail}" for detail in each.details)]
    lines += [f"\nWhy no GPU: {reason}" for reason in report.reasons]
    for title, table in {**report.tables, "Where and how often it was measured": report.measured}.items():
        lines += ["", f"## {title}", ""]
        lines += ["| " + " | ".join(table.columns) + " |", "|" + " --- |" * len(table.columns)]
        lines += ["| " + " | ".join(map(markdown_cell, row)) + " |" for row in table.to_numpy().tolist()]
    return "\n".join(lines) + "\n"


def as_page(report: Report) -> str:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("photofinish.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["number_columns"] = number_columns
    environment.filters["with_code"] = _with_code
    return environment.get_template("report.html.j2").render(report=report)


def _with_code(text: str) -> Markup:
    """Lines of params.yaml, which stand between backticks, set as such."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(text))))  # noqa: S704  # escaped just before


def number_columns(table: pd.DataFrame) -> list[bool]:
    """Which columns hold figures: these are set flush right, and sorted by value."""
    return [_holds_numbers(table.iloc[:, place].tolist()) for place in range(table.shape[1])]


def _holds_numbers(cells: list[str]) -> bool:
    figures = [cell for cell in cells if cell != _NO_FIGURE]
    return bool(figures) and all(_NUMBER.fullmatch(cell) for cell in figures)
