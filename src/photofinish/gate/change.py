"""Change of a training's time and losses, measured by two processes that take turns."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from itertools import pairwise, takewhile

from photofinish.wording import counted, interval_text, ratio, seconds, times

FEWEST_STARTS = 2
"""Fewest pairs of processes. Their speeds differ, because memory layout and core differ."""
_ALARM_STARTS = 4
"""Fewest pairs before a training is clearly slower.

Beside other programs, two pairs at equal speed agreed on 1.3 to 1.4 times in 2 of 55 comparisons.
"""
_LEAST_DEVIATION = 0.03
"""Least standard deviation of the pairs' log ratios. Two pairs may agree by chance."""
_ERRORS = 3.0
"""Half of an interval, in standard errors. A ratio beyond it is not explained by chance."""


@dataclass(frozen=True)
class Losses:
    """Losses of one turn of a side, which begins an epoch."""

    steps: int
    """Number of trained steps: more than in the turn if several are captured together."""
    sha256: str


class Rounds:
    """Turns of a pair of processes. Both are close in time, so that load affects both."""

    def __init__(self) -> None:
        self.old_seconds: list[float] = []
        self.new_seconds: list[float] = []
        """Duration of an epoch, measured by each turn."""
        self.old_losses: list[Losses] = []
        self.new_losses: list[Losses] = []
        """Losses of each turn, including warm-up turns."""

    @property
    def log_ratio(self) -> float:
        """Logarithm of the rounds' median ratio."""
        pairs = zip(self.new_seconds, self.old_seconds, strict=True)
        return statistics.median(math.log(new / old) for new, old in pairs)


@dataclass(frozen=True)
class Change:
    """Change of a training's time, over all pairs of processes."""

    name: str
    allowed: float
    pairs: tuple[Rounds, ...]

    @property
    def ratio(self) -> float:
        """Geometric mean of the pairs' ratios."""
        return math.exp(self._log_ratio)

    @property
    def interval(self) -> tuple[float, float]:
        """Interval of three standard errors around the mean, from the differences between pairs."""
        half = _ERRORS * self._error
        return math.exp(self._log_ratio - half), math.exp(self._log_ratio + half)

    @property
    def is_clear(self) -> bool:
        """True if the interval is on one side of the allowed ratio."""
        if len(self.pairs) < FEWEST_STARTS:
            return False
        low, high = self.interval
        return high < self.allowed or (low > self.allowed and len(self.pairs) >= _ALARM_STARTS)

    @property
    def is_too_slow(self) -> bool:
        """True if the ratio is above the allowed ratio, and equal speeds would not explain it."""
        return self.ratio > self.allowed and self.interval[0] > 1

    @property
    def bits(self) -> tuple[bool | None, str]:
        """Whether the losses have the same bits from the first step on. None if it isn't known."""
        if not any(_comparable(one.old_losses, one.new_losses) for one in self.pairs):
            return None, "bits not compared"
        differing = [_steps_to_difference(one.old_losses, one.new_losses) for one in self.pairs]
        steps = min(filter(None, differing), default=None)
        if steps is None:
            return True, "the same bits"
        for one, other in pairwise(self.pairs):
            for losses, others in (
                (one.old_losses, other.old_losses),
                (one.new_losses, other.new_losses),
            ):
                if _steps_to_difference(losses, others):
                    return None, "bits that do not repeat"
        return False, f"other bits within {counted(steps, 'step')}"

    @property
    def _log_ratio(self) -> float:
        return statistics.mean(pair.log_ratio for pair in self.pairs)

    @property
    def _error(self) -> float:
        """Standard error of the log ratio, which needs at least two pairs."""
        deviation = statistics.stdev(pair.log_ratio for pair in self.pairs)
        return max(_LEAST_DEVIATION, deviation) / math.sqrt(len(self.pairs))

    def __str__(self) -> str:
        old = seconds(statistics.median(one for pair in self.pairs for one in pair.old_seconds))
        new = seconds(statistics.median(one for pair in self.pairs for one in pair.new_seconds))
        text = (
            f"{times(self.ratio)} the time ({interval_text(self.interval)}): {new} an epoch, "
            f"not {old}; {self.bits[1]}"
        )
        if self.is_clear:
            return text
        return f"{text}. This is not clear: the interval includes the limit, {ratio(self.allowed)}"


def _comparable(losses: list[Losses], others: list[Losses]) -> list[tuple[Losses, Losses]]:
    """Return the turns up to the first with different numbers of steps.

    The graphs of such turns have different sizes.
    """
    turns = zip(losses, others, strict=False)
    return list(takewhile(lambda turn: turn[0].steps == turn[1].steps, turns))


def _steps_to_difference(losses: list[Losses], others: list[Losses]) -> int | None:
    """Return the number of steps up to the end of the first turn whose losses differ, or None."""
    steps = 0
    for one, other in _comparable(losses, others):
        steps += one.steps
        if one != other:
            return steps
    return None
