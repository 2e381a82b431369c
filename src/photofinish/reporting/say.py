"""Fill the templates of sentences: numbers as text, and parts that are left out."""

from __future__ import annotations

import re
from collections.abc import Callable
from string import Formatter
from typing import Any

from photofinish.reporting.templates import TEMPLATES
from photofinish.wording import bound, counted, interval_text, limit, listed, ratio, seconds, times


def _points(share: float) -> str:
    points = f"{100 * share:g}"
    return f"{points} point{'' if points == '1' else 's'}"


_FORMATS: dict[str, Callable[[Any], str]] = {
    "time": seconds,
    "x": times,
    "ratio": ratio,
    "interval": interval_text,
    "bound": bound,
    "limit": limit,
    "list": listed,
    "commas": ", ".join,
    "points": _points,
    "cap": lambda text: f"{text[0].upper()}{text[1:]}",
}
"""Formats of fields beside Python's and `n NOUN`, which counts."""


class _Writer(Formatter):
    """Formatter that knows times, ratios and counted nouns."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec.startswith("n "):
            return counted(value, format_spec.removeprefix("n "))
        if write := _FORMATS.get(format_spec):
            return write(value)
        return str(super().format_field(value, format_spec))


_WRITER = _Writer()
_OPTIONAL = re.compile(r"\[(.*?)\]")


def say(template: str, **values: Any) -> str:
    """Return a template, filled by values and their attributes."""

    def part(match: re.Match[str]) -> str:
        names = [name for _, name, _, _ in _WRITER.parse(match[1]) if name]
        return match[1] if all(_WRITER.get_field(name, (), values)[0] for name in names) else ""

    return _WRITER.format(_OPTIONAL.sub(part, TEMPLATES[template]), **values)
