"""Sides take turns, so that what else the machine does hits them alike; each round gives a ratio of its own."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

RunSide = Callable[[], "Outcome"]
NowSeconds = Callable[[], float]
"""The clock: that of the wall, or of the processor time that this process has had."""


@dataclass(frozen=True)
class Outcome:
    """One round of one side."""

    epoch_seconds: float
    validation_loss: float
    """of the network that came out, computed by the harness: sides that did the same work agree"""


@dataclass(frozen=True)
class Spread:
    median: float
    lowest: float
    highest: float


def spread(values: list[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values))


def alternate(sides: Mapping[str, RunSide], rounds: int) -> dict[str, list[Outcome]]:
    """Every side once a round. Each round starts with another side, so that none always follows the same one."""
    outcomes: dict[str, list[Outcome]] = {name: [] for name in sides}
    names = list(sides)
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            outcomes[name].append(sides[name]())
    return outcomes


def ratios(numerator: list[Outcome], denominator: list[Outcome]) -> Spread:
    """Of times measured in the same round."""
    pairs = zip(numerator, denominator, strict=True)
    return spread([above.epoch_seconds / below.epoch_seconds for above, below in pairs])
