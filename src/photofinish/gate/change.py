"""Change of a training's time and losses, measured by two processes that take turns."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from typing import NamedTuple

from photofinish.wording import counted, interval_text, ratio, seconds, times

_FEWEST_STARTS = 2
"""Fewest pairs of processes. Their speeds differ, because memory layout and core differ."""
_ALARM_STARTS = 4
"""Fewest pairs before a training is clearly slower.

Beside other programs, two pairs at equal speed agreed on 1.3 to 1.4 times in 2 of 55 comparisons.
"""
_LEAST_DEVIATION = 0.03
"""Least deviation of log ratios, by hand: pairs agree by chance."""
_ERRORS = 3.0
"""Half of an interval, in standard errors: benchmarks/gate_noise.py has its false alarms."""


class Turn(NamedTuple):
    """Some steps of a side, from the start of an epoch."""

    seconds: float
    epoch_seconds: float
    """Time of an epoch at this speed."""
    steps: int
    """Number of steps, including steps that were not timed."""
    losses_sha256: str


@dataclass
class Rounds:
    """Turns of a pair of processes. Both are close in time, so that load affects both."""

    old: list[Turn] = field(default_factory=list)
    new: list[Turn] = field(default_factory=list)
    warm_up_turns: int = 0
    """Number of turns whose time does not count."""

    @property
    def epoch_seconds(self) -> list[tuple[float, float]]:
        """Time of an epoch on both sides, by each round."""
        rounds = list(zip(self.old, self.new, strict=True))[self.warm_up_turns :]
        return [(old.epoch_seconds, new.epoch_seconds) for old, new in rounds]

    @property
    def log_ratio(self) -> float:
        """Logarithm of the rounds' median ratio."""
        return statistics.median(math.log(new / old) for old, new in self.epoch_seconds)


@dataclass(frozen=True)
class Change:
    """Change of a training's time, over all pairs of processes."""

    allowed: float
    pairs: tuple[Rounds, ...]

    @property
    def ratio(self) -> float:
        """Geometric mean of the pairs' ratios."""
        return math.exp(self._log_ratio)

    @property
    def interval(self) -> tuple[float, float]:
        """Interval of three standard errors around the mean, from at least two pairs."""
        deviation = statistics.stdev(pair.log_ratio for pair in self.pairs)
        half = _ERRORS * max(_LEAST_DEVIATION, deviation) / math.sqrt(len(self.pairs))
        return math.exp(self._log_ratio - half), math.exp(self._log_ratio + half)

    @property
    def is_clear(self) -> bool:
        """True if the interval is on one side of the allowed ratio."""
        if len(self.pairs) < _FEWEST_STARTS:
            return False
        low, high = self.interval
        return high < self.allowed or (low > self.allowed and len(self.pairs) >= _ALARM_STARTS)

    @property
    def is_too_slow(self) -> bool:
        """True if the ratio is above the allowed ratio, and equal speeds would not explain it."""
        return self.ratio > self.allowed and self.interval[0] > 1

    @property
    def bits(self) -> tuple[bool | None, str]:
        """True if the losses have the same bits from the first step on, or None if unknown."""
        if not any(_comparable(one.old, one.new) for one in self.pairs):
            return None, "losses not compared"
        differing = [_steps_to_difference(one.old, one.new) for one in self.pairs]
        steps = min(filter(None, differing), default=None)
        if steps is None:
            return True, "same losses bit for bit"
        for one, other in pairwise(self.pairs):
            if _steps_to_difference(one.old, other.old) or _steps_to_difference(one.new, other.new):
                return None, "losses vary from run to run"
        return False, f"losses differ within {counted(steps, 'step')}"

    @property
    def _log_ratio(self) -> float:
        return statistics.mean(pair.log_ratio for pair in self.pairs)

    def __str__(self) -> str:
        rounds = [seconds_of for pair in self.pairs for seconds_of in pair.epoch_seconds]
        old, new = (seconds(statistics.median(side)) for side in zip(*rounds, strict=True))
        text = (
            f"{times(self.ratio)} the time ({interval_text(self.interval)}): {new} an epoch, "
            f"{old} before; {self.bits[1]}"
        )
        if self.is_clear:
            return text
        return f"{text}. Unclear, as the range includes the limit, {ratio(self.allowed)}"


def _comparable(turns: list[Turn], others: list[Turn]) -> list[tuple[Turn, Turn]]:
    """Return the turns up to the first with different numbers of steps.

    The graphs of such turns have different sizes.
    """
    pairs = zip(turns, others, strict=False)
    return list(takewhile(lambda pair: pair[0].steps == pair[1].steps, pairs))


def _steps_to_difference(turns: list[Turn], others: list[Turn]) -> int | None:
    """Return the steps until a turn's losses differ, or None."""
    steps = 0
    for one, other in _comparable(turns, others):
        steps += one.steps
        if one.losses_sha256 != other.losses_sha256:
            return steps
    return None
