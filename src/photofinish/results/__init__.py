"""Results of a run on disk: records, histories, weights, scores.

The trainer needs the dataclasses below, but neither pydantic nor files.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class EpochMetrics:
    """Metrics of one epoch: a row of history.csv."""

    epoch: int
    """Number of the epoch, from 1."""
    learning_rate: float
    """Learning rate of the epoch's first step."""
    training_loss: float
    validation_loss: float | None = None
    """None without a validation part."""
    validation_accuracy: float | None = None
    """None if the task has values, or without a validation part."""
    monitored: float | None = None
    """Metric that early stopping follows. None if it follows no metric, or if it is not finite."""


@dataclass(frozen=True)
class EpochTiming:
    """Durations of an epoch's training and validation pass, and the time at their end."""

    training_seconds: float
    validation_seconds: float
    ended_at_unix_seconds: float


def passed_seconds(timings: Iterable[EpochTiming]) -> float:
    return sum(timing.training_seconds + timing.validation_seconds for timing in timings)


def median_training_seconds(timings: Iterable[EpochTiming]) -> float:
    return statistics.median(timing.training_seconds for timing in timings)
