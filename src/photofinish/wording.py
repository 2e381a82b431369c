"""Figures as a person reads them."""

from __future__ import annotations


def seconds(value: float) -> str:
    """Three digits, in the unit that suits."""
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if value * scale >= 1:
            return f"{_three_digits(value * scale)} {unit}"
    return f"{_three_digits(value * 1e6)} µs"


def _three_digits(value: float) -> str:
    """Or all of the whole part, where it has more."""
    return f"{value:,.{2 if value < 10 else 1 if value < 100 else 0}f}"
