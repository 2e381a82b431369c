"""What one epoch gave and how long it took. Plain dataclasses: the trainer needs neither pydantic nor files."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class EpochMetrics:
    epoch: int
    """from 1"""
    learning_rate: float
    """at the epoch's first step"""
    training_loss: float
    validation_loss: float
    validation_accuracy: float


@dataclass(frozen=True)
class EpochTiming:
    training_seconds: float
    validation_seconds: float
    ended_at_unix_seconds: float


def passed_seconds(timings: Iterable[EpochTiming]) -> float:
    """In the timed passes, all together."""
    return sum(timing.training_seconds + timing.validation_seconds for timing in timings)


def median_training_seconds(timings: Iterable[EpochTiming]) -> float:
    return statistics.median(timing.training_seconds for timing in timings)
