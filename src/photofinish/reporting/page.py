"""Templates of the page, and of the answers in a notebook. They escape all text."""

from __future__ import annotations

import re
from collections.abc import Sequence

import jinja2
from markupsafe import Markup, escape

from photofinish.reporting.templates import NOTHING
from photofinish.wording import markdown_text

Table = list[dict[str, str]]
"""Rows of a table, each with its cells by heading."""
VERDICT = "verdict"
"""Heading of the phrases that name what to do, which are coloured."""
_NUMBER = re.compile(r"-?[\d,]*\.?\d+( ?(µs|ms|s|min|h|%|x))?( \([\d.]+%\))?")
_CODE = re.compile(r"`([^`]+)`")


def template(name: str) -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("photofinish.reporting"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"number_columns": number_columns, "VERDICT": VERDICT, "kind": kind}
    # Text between backticks is code.
    environment.filters["with_code"] = lambda text: Markup(  # noqa: S704
        _CODE.sub(r"<code>\1</code>", str(escape(text)))
    )
    environment.filters["for_markdown"] = lambda text: Markup(markdown_text(text))  # noqa: S704
    return environment.get_template(name)


def kind(phrase: str) -> str:
    """Return the CSS class of a verdict: yes, no or unsure."""
    if phrase.startswith("No"):
        return "no"
    return "yes" if phrase.startswith(("Yes", "Probably yes")) else "unsure"


def number_columns(table: Sequence[dict[str, str]]) -> set[str]:
    """Return the headings of numbers, which are flush right."""
    numeric = set()
    for heading in table[0]:
        cells = [row[heading] for row in table if row[heading] != NOTHING]
        if cells and all(_NUMBER.fullmatch(cell) for cell in cells):
            numeric.add(heading)
    return numeric
