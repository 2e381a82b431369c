"""Figures as a person reads them."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from decimal import Decimal

_MOST_CHARACTERS = 70
_MOST_NAMES_SHOWN, _FIRST_NAMES = 40, 12


def seconds(value: float) -> str:
    """A time in three digits, in the unit that suits."""
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if value * scale >= 1:
            return f"{_three_digits(value * scale)} {unit}"
    return f"{_three_digits(value * 1e6)} µs"


def utc_minute(unix_seconds: float) -> str:
    """The date and the time of day, to a minute."""
    return f"{datetime.fromtimestamp(unix_seconds, UTC):%Y-%m-%d %H:%M} UTC"


def utc_day(unix_seconds: float) -> str:
    """The date alone."""
    return f"{datetime.fromtimestamp(unix_seconds, UTC):%Y-%m-%d}"


def energy(joules: float) -> str:
    """An energy in three digits, in the unit that suits."""
    for unit, scale in (("J", 1.0), ("kJ", 1e3), ("MJ", 1e6)):
        if joules < 1000 * scale or unit == "MJ":
            break
    return f"{_three_digits(joules / scale)} {unit}"


def money(amount: float, currency: str) -> str:
    """A price in three digits that count, however little it is, and never an exponent; from 1 on, hundredths."""
    return f"{amount:,.2f} {currency}" if amount >= 1 else f"{Decimal(f'{amount:.3g}'):f} {currency}"


def ratio(value: float) -> str:
    """A ratio in hundredths, or where those say little, two digits that count; never an exponent."""
    return f"{value:,.2f}" if value >= 0.1 else f"{Decimal(f'{value:.2g}'):f}"


def at_most(value: float) -> str:
    """A ratio that is a bound, in three digits that count, and never less than it is."""
    if not math.isfinite(value):
        return "any number of"
    decimals = max(0, 2 - math.floor(math.log10(value)))
    return f"{math.ceil(value * 10**decimals - 1e-9) / 10**decimals:,.{decimals}f}"


def listed(texts: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([part for part in (", ".join(texts[:-1]), *texts[-1:]) if part])


def all_or_some(names: Sequence[str]) -> str:
    """The names, or the first of many."""
    if len(names) <= _MOST_NAMES_SHOWN:
        return ", ".join(names)
    return f"{', '.join(names[:_FIRST_NAMES])} and {len(names) - _FIRST_NAMES} more"


def byte_size(count: float) -> str:
    """A size with a decimal, in the unit that suits."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def printable(text: str) -> str:
    """On one line, with escapes for what a terminal obeys or hides: control characters, and those that turn text."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def shortened(text: str) -> str:
    """As much of a value as a message shows."""
    return text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 1] + "…"


def markdown_text(text: str) -> str:
    """The text as such in Markdown: no HTML, link or emphasis, nor the end of a table's cell; code stays code."""
    return re.sub(r"(`[^`|\\]*`)|([\\|<>&*\[\]`])", lambda found: found[1] or f"\\{found[2]}", " ".join(text.split()))


def _three_digits(value: float) -> str:
    """Or all of the whole part, where it has more."""
    return f"{value:,.{2 if value < 10 else 1 if value < 100 else 0}f}"


def nearest_name(name: object, allowed: Iterable[str]) -> str | None:
    """The allowed name that was probably meant."""
    plain = {_plain(option): option for option in allowed}
    matches = difflib.get_close_matches(_plain(str(name)), plain, n=1, cutoff=0.5)
    return plain[matches[0]] if matches else None


def did_you_mean(name: object, allowed: Iterable[str]) -> str:
    """A question that names the nearest of the allowed names, with a space before it; nothing where none is near."""
    nearest = nearest_name(name, allowed)
    return f" did you mean '{nearest}'?" if nearest else ""


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")
