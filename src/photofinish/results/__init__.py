"""What a run leaves on disk: records, histories, networks, scores.

Here, what one epoch gave and how long it took: plain dataclasses, for the trainer needs neither pydantic nor files.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class EpochMetrics:
    """What the network learned in one epoch, as a row of history.csv."""

    epoch: int
    """from 1"""
    learning_rate: float
    """at the epoch's first step"""
    training_loss: float
    validation_loss: float
    validation_accuracy: float | None = None
    """None where values are told, of which none is right or wrong"""


@dataclass(frozen=True)
class EpochTiming:
    """How long one epoch's two passes took, and when they were done."""

    training_seconds: float
    validation_seconds: float
    ended_at_unix_seconds: float


def passed_seconds(timings: Iterable[EpochTiming]) -> float:
    """In the timed passes, all together."""
    return sum(timing.training_seconds + timing.validation_seconds for timing in timings)


def median_training_seconds(timings: Iterable[EpochTiming]) -> float:
    """Of an epoch's pass over the training images, validation not counted."""
    return statistics.median(timing.training_seconds for timing in timings)
