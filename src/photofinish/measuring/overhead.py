"""What the training loop spends between its timed passes, by what for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

from photofinish.results.records import Overhead

Purpose = Literal["display", "saving", "tracking", "watching"]


class OverheadMeter:
    def __init__(self) -> None:
        self._seconds: dict[Purpose, float] = dict.fromkeys(get_args(Purpose), 0.0)
        self._loop_seconds = 0.0

    @contextmanager
    def loop(self) -> Iterator[None]:
        """Around the whole loop, its timed passes included."""
        started_seconds = time.perf_counter()
        yield
        self._loop_seconds += time.perf_counter() - started_seconds

    @contextmanager
    def spent_on(self, purpose: Purpose) -> Iterator[None]:
        started_seconds = time.perf_counter()
        yield
        self._seconds[purpose] += time.perf_counter() - started_seconds

    def overhead(self, passes_seconds: float) -> Overhead:
        """Given what the loop spent in its timed passes; what is left over is nobody's."""
        rest_seconds = self._loop_seconds - passes_seconds - sum(self._seconds.values())
        named = {f"{purpose}_seconds": seconds for purpose, seconds in self._seconds.items()}
        return Overhead(passes_seconds=passes_seconds, rest_seconds=max(0.0, rest_seconds), **named)
