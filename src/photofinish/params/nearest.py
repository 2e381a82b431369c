"""The name that was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest_name(name: object, allowed: Iterable[str]) -> str | None:
    plain = {_plain(option): option for option in allowed}
    matches = difflib.get_close_matches(_plain(str(name)), plain, n=1, cutoff=0.5)
    return plain[matches[0]] if matches else None


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")
