"""Results of a run on disk: records, histories, weights, scores.

The trainer needs the dataclasses below, but neither pydantic nor files.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal


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


@dataclass(frozen=True)
class TimedPart:
    """Consecutive steps of a training, timed together, with the training's own input."""

    seconds: float
    steps: float
    """Number of steps. A smaller last batch is a fraction."""
    epoch: int
    """Number of the epoch, from 0."""
    holds: Literal["start", "steps", "epoch", "run"]
    """A start is an epoch's first steps, with the start of its loader.

    A run is a whole script without a step that was seen.
    """
    waiting_seconds: float | None = None
    """Time in which nothing was computed because batches were awaited. None if it is not known."""
    waiting_cpu_seconds: float = 0.0
    """CPU time of an experiment's training thread in these waits."""


def passed_seconds(timings: Iterable[EpochTiming]) -> float:
    return sum(timing.training_seconds + timing.validation_seconds for timing in timings)


def median_training_seconds(timings: Iterable[EpochTiming]) -> float:
    return statistics.median(timing.training_seconds for timing in timings)
