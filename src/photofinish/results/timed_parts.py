"""Time of an epoch by the timed parts of a training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from photofinish.results import TimedPart

_SLOWER = 1.1
"""Factor, by hand, by which a first epoch is slower if its excess is to count once.

If it were less, chance would shorten all other epochs.
"""
LATER_PARTS = 3
"""Minimum number of later parts, by hand, to see whether the first epoch is slower."""


@dataclass(frozen=True)
class EpochByParts:
    """Time of an epoch's training pass, if all its steps are like the parts."""

    seconds: float
    values: tuple[float, ...]
    """Time of an epoch by each part."""
    waiting_seconds: tuple[float, ...]
    """Time of waits in an epoch by each part, or empty if that is not known."""
    once_seconds: float
    """Time that only the first epoch takes, for example to fill a cache."""
    between_seconds: float = 0.0
    """Time at an epoch's start beside its steps and waits, for example to save a checkpoint."""
    mean_waiting_seconds: float = 0.0


def epoch_by_parts(parts: Sequence[TimedPart], epoch_steps: float) -> EpochByParts:
    """Return the time of an epoch: its start, and its steps at their mean speed."""
    slow, usual = slow_and_usual(parts)
    if usual[0].holds == "run":
        return EpochByParts(usual[0].seconds, (usual[0].seconds,), (), 0.0)
    step_seconds, step_wait = step_of(usual), wait_of(usual)
    once_seconds = epoch_steps * (step_of(slow) - step_seconds) if slow else 0.0
    # If the first epoch's excess counts once, its start is in it.
    first = min(part.epoch for part in usual)
    starts = [part for part in parts if part.holds == "start" and part.epoch >= first]
    start_seconds = _excess([part.seconds - part.steps * step_seconds for part in starts])
    seconds = start_seconds + epoch_steps * step_seconds
    values = tuple(start_seconds + epoch_steps * step_of([part]) for part in usual)
    if step_wait is None:
        return EpochByParts(seconds, values, (), once_seconds)
    start_wait = _excess(
        [(part.waiting_seconds or 0.0) - part.steps * step_wait for part in starts]
    )
    waits = tuple(start_wait + epoch_steps * (wait_of([part]) or 0.0) for part in usual)
    between_seconds = max(0.0, start_seconds - start_wait)
    mean_wait = start_wait + epoch_steps * step_wait
    return EpochByParts(seconds, values, waits, once_seconds, between_seconds, mean_wait)


def slow_and_usual(parts: Sequence[TimedPart]) -> tuple[list[TimedPart], list[TimedPart]]:
    """Return the first epoch's parts if its steps are slower, and the usual parts.

    Starts of epochs are left out, unless there is nothing else.
    """
    steady = [part for part in parts if part.holds != "start"] or list(parts)
    first = [part for part in steady if part.epoch == 0]
    later = [part for part in steady if part.epoch > 0]
    if first and len(later) >= LATER_PARTS and step_of(first) > _SLOWER * step_of(later):
        return first, later
    return [], steady


def step_of(parts: Sequence[TimedPart]) -> float:
    """Return the mean time of a step."""
    return sum(part.seconds for part in parts) / sum(part.steps for part in parts)


def wait_of(parts: Sequence[TimedPart]) -> float | None:
    """Return the mean wait of a step, or None if a part's isn't known."""
    waits = [part.waiting_seconds for part in parts if part.waiting_seconds is not None]
    if len(waits) < len(parts):
        return None
    return sum(waits) / sum(part.steps for part in parts)


def _excess(seconds: Sequence[float]) -> float:
    """Return the mean time of a start in excess of its steps."""
    return max(0.0, sum(seconds) / len(seconds)) if seconds else 0.0
