"""Sides take turns, so that other load of the machine hits all. Each round gives a ratio."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

RunSide = Callable[[], "Outcome"]
NowSeconds = Callable[[], float]
"""Wall time or processor time of this process."""


@dataclass(frozen=True)
class Outcome:
    """One round of one side."""

    epoch_seconds: float
    validation_loss: float
    """Loss of the trained network. Sides that did the same work agree."""


@dataclass(frozen=True)
class Spread:
    median: float
    lowest: float
    highest: float


def spread(values: list[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values))


def alternate(sides: Mapping[str, RunSide], rounds: int) -> dict[str, list[Outcome]]:
    """Run every side once a round, in an order that turns, so that none always follows another."""
    outcomes: dict[str, list[Outcome]] = {name: [] for name in sides}
    names = list(sides)
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            outcomes[name].append(sides[name]())
    return outcomes


def ratios(numerator: list[Outcome], denominator: list[Outcome]) -> Spread:
    """Return the spread of ratios of times from the same round."""
    pairs = zip(numerator, denominator, strict=True)
    return spread([above.epoch_seconds / below.epoch_seconds for above, below in pairs])
