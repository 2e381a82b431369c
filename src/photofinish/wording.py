"""Figures as a person reads them."""

from __future__ import annotations


def seconds(value: float) -> str:
    """Three digits, in the unit that suits."""
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if value * scale >= 1:
            return f"{value * scale:.3g} {unit}"
    return f"{value * 1e6:.3g} µs"
