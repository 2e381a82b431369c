"""Numbers and names as text."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from decimal import Decimal

HIGH = 20.0
"""Largest upper bound that is shown as a number."""
MOST_WIDTH = 12.0
"""Largest ratio of an interval's ends that is shown, by hand. A wider one misleads.

That of a launch-bound job's estimate is 10, as hosts differ that much.
"""
_MOST_CHARACTERS = 70
_MOST_NAMES, _FIRST_NAMES = 40, 12


def seconds(value: float) -> str:
    """Return a time in µs, ms, s, min or h: `1.9 s`, `418 ms`."""
    if not value:
        return "0 s"
    for size, unit in ((3600, "h"), (60, "min")):
        if value >= 2 * size:
            return f"{_short(value / size)} {unit}"
    if value >= 1:
        return f"{_short(value)} s"
    return f"{_short(value * 1e3)} ms" if value >= 1e-3 else f"{_short(value * 1e6)} µs"


def _short(value: float) -> str:
    return _one_decimal(value).removesuffix(".0")


def _one_decimal(value: float) -> str:
    return f"{value:,.1f}" if value < 9.95 else f"{value:,.0f}"


def span(value: float, interval: tuple[float, float]) -> str:
    """Return a time with its interval in the same unit, `12 s (11-13)`, or why it has none."""
    if is_wide(interval):
        return "not known"
    ends = ends_in_unit(value, interval)
    return seconds(value) if len(set(ends)) == 1 else f"{seconds(value)} ({'-'.join(ends)})"


def is_wide(interval: tuple[float, float]) -> bool:
    """Return True if an interval is too wide to be printed."""
    return not interval[1] <= MOST_WIDTH * interval[0]


def between(interval: tuple[float, float]) -> str:
    """Return the ends of a time's interval in one unit: `11-13 s`, or `-2 to 13 s`."""
    low, high = ends_in_unit(interval[1], interval)
    unit = seconds(interval[1]).split()[1]
    dash = "-" if interval[0] >= 0 else " to "
    return f"{high} {unit}" if low == high else f"{low}{dash}{high} {unit}"


def ends_in_unit(value: float, interval: tuple[float, float]) -> tuple[str, str]:
    """Return both ends of a time's interval in the unit of a value, which is left out."""
    scale = {"h": 3600, "min": 60, "s": 1, "ms": 1e-3, "µs": 1e-6}[seconds(value).split()[1]]
    ends = (end / scale for end in interval)
    low, high = (_short(end) if abs(end) >= 1 else f"{end:.2g}" for end in ends)
    return low, high


def factor(value: float) -> str:
    """Return a ratio of two digits: `0.94x`, `2.2x`, `12x`."""
    return f"{_factor(value)}x"


def factors(interval: tuple[float, float]) -> str:
    """Return the ends of a ratio's interval, of two digits each: `1.5-1.8`."""
    ends = [_factor(end) for end in interval]
    return ends[0] if ends[0] == ends[1] else "-".join(ends)


def _factor(value: float) -> str:
    if value < 0.995:
        return f"{value:.2g}"
    return _short(value) if value < 9.95 else f"{float(f'{value:.2g}'):,.0f}"


def utc_minute(unix_seconds: float) -> str:
    """Return the date and time in UTC, to a minute."""
    return f"{datetime.fromtimestamp(unix_seconds, UTC):%Y-%m-%d %H:%M} UTC"


def utc_day(unix_seconds: float) -> str:
    return f"{datetime.fromtimestamp(unix_seconds, UTC):%Y-%m-%d}"


def measure_again(stages: Iterable[str]) -> str:
    """Return the command that runs these stages again and writes the report."""
    return f"photofinish run --force --single-item {' '.join(stages)} && photofinish run"


def money(amount: float, currency: str) -> str:
    """Return a price with two decimals."""
    if 0 < amount < 0.01:
        return f"under 0.01 {currency}"
    return f"{amount:,.2f} {currency}"


def ratio(value: float) -> str:
    """Return a ratio without an exponent: `530`, `12`, `6.0`, `1.04`, `0.012`."""
    if value < 0.1 or (value >= 100 and math.isfinite(value)):
        return f"{Decimal(f'{value:.2g}'):,f}"
    return f"{value:.2f}" if value < 2 else _one_decimal(value)


def times(value: float) -> str:
    """Return `12x`, `6.0x`, `1.04x` or `0.012x`."""
    return f"{ratio(value)}x"


def bound(value: float) -> str:
    """Return an upper bound of a ratio, rounded up: `2.4x`, `12x`."""
    if not math.isfinite(value):
        return "∞x"
    if value > 9.9:
        return f"{math.ceil(value):,}x"
    return f"{math.ceil(10 * value - 1e-9) / 10:.1f}x"


def limit(value: float) -> str:
    """Return an upper bound of a ratio, or `no limit here` if it is too high to matter."""
    return bound(value) if value <= HIGH else "no limit here"


def faster(speedup: float, interval: tuple[float, float] | None = None) -> str:
    """Return `12x faster (11 to 13)`, or `0.50x as fast`."""
    text = f"{times(speedup)} faster" if speedup >= 1 else f"{times(speedup)} as fast"
    return f"{text} ({interval_text(interval)})" if interval else text


def interval_text(interval: tuple[float, float]) -> str:
    """Return `1.9 to 2.1`."""
    return " to ".join(map(ratio, interval))


def gibibytes(count: float) -> str:
    """Return a number of GiB, to compare with a GPU's memory: `40`, `under 0.1`."""
    return "under 0.1" if count < 0.1 * 2**30 else _short(count / 2**30)


def byte_size(count: float) -> str:
    """Return a size with one decimal, in the largest binary unit below it."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def counted(number: float, noun: str) -> str:
    """Return `1 epoch` or `1,000 epochs`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def listed(texts: Sequence[str]) -> str:
    """Return `a`, `a and b` or `a, b and c`."""
    return " and ".join([part for part in (", ".join(texts[:-1]), *texts[-1:]) if part])


def with_article(gpu: str) -> str:
    """Return `an A10G` or `a T4`."""
    is_spelled = not gpu[1:2].islower()  # A10G, but not Apple
    return f"{'an' if gpu[0] in ('AEFHILMNORSX' if is_spelled else 'AEIO') else 'a'} {gpu}"


def all_or_some(names: Sequence[str]) -> str:
    """Return the names, or the first of many."""
    if len(names) <= _MOST_NAMES:
        return ", ".join(names)
    return f"{', '.join(names[:_FIRST_NAMES])} and {len(names) - _FIRST_NAMES} more"


def shortened(text: str) -> str:
    """Cut a value to the length that a message shows."""
    return text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 1] + "…"


def printable(text: str) -> str:
    """Return text in which control characters are written out, as in `a\\x1b[31m`."""
    return "".join(one if one.isprintable() or one == "\n" else ascii(one)[1:-1] for one in text)


def markdown_text(text: str) -> str:
    """Escape text for Markdown, including table cells. Code in backticks stays code."""
    code_or_symbol = r"(`[^`|\\]*`)|([\\|<>&*\[\]`])"
    return re.sub(code_or_symbol, lambda match: match[1] or f"\\{match[2]}", " ".join(text.split()))


def did_you_mean(name: object, allowed: Iterable[str]) -> str:
    """Return ' did you mean ...?' with the nearest allowed name, or nothing if none is near."""
    plain = {_plain(option): option for option in allowed}
    matches = difflib.get_close_matches(_plain(str(name)), plain, n=1, cutoff=0.5)
    return f" did you mean '{plain[matches[0]]}'?" if matches else ""


def unknown_name(what: str, name: object, allowed: Sequence[str]) -> str:
    """Return 'unknown optimizer; did you mean adam? allowed: ...'."""
    return f"unknown {what};{did_you_mean(name, allowed)} allowed: {all_or_some(allowed)}"


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")
