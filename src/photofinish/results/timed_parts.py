"""Time of an epoch by the timed parts of a training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from photofinish.results import TimedPart

_SLOWER = 1.1
"""Factor by which the first epoch must be slower if its excess is to count once."""
_LATER_PARTS = 3
"""Minimum number of parts in later epochs, to see whether the first epoch is slower."""


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
    """Time of waits in an epoch."""


def epoch_by_parts(parts: Sequence[TimedPart], epoch_steps: float) -> EpochByParts:
    """Return the time of an epoch of so many steps: its start, and its steps at the mean speed."""
    steady = [part for part in parts if part.holds != "start"] or list(parts)
    once_seconds, later = 0.0, [part for part in steady if part.epoch > 0]
    if len(later) >= _LATER_PARTS and len(later) < len(steady):
        first_seconds = _step_seconds([part for part in steady if part.epoch == 0])
        if first_seconds > _SLOWER * _step_seconds(later):
            once_seconds = epoch_steps * (first_seconds - _step_seconds(later))
            steady = later
    if steady[0].holds == "run":
        return EpochByParts(steady[0].seconds, (steady[0].seconds,), (), 0.0)
    step_seconds = _step_seconds(steady)
    # If the first epoch's excess counts once, its start is in it.
    first = min(part.epoch for part in steady)
    starts = [part for part in parts if part.holds == "start" and part.epoch >= first]
    start_seconds = _excess([part.seconds - part.steps * step_seconds for part in starts])
    values = tuple(start_seconds + epoch_steps * part.seconds / part.steps for part in steady)
    seconds = start_seconds + epoch_steps * step_seconds
    waits = [part.waiting_seconds or 0.0 for part in steady]
    if any(part.waiting_seconds is None for part in steady):
        return EpochByParts(seconds, values, (), once_seconds)
    a_step = sum(waits) / sum(part.steps for part in steady)
    start_wait = _excess([(part.waiting_seconds or 0.0) - part.steps * a_step for part in starts])
    pairs = zip(waits, steady, strict=True)
    waits = [start_wait + epoch_steps * waited / part.steps for waited, part in pairs]
    between_seconds, mean = max(0.0, start_seconds - start_wait), start_wait + epoch_steps * a_step
    return EpochByParts(seconds, values, tuple(waits), once_seconds, between_seconds, mean)


def _excess(seconds: Sequence[float]) -> float:
    """Return the mean time of a start in excess of its steps."""
    return max(0.0, sum(seconds) / len(seconds)) if seconds else 0.0


def _step_seconds(parts: Sequence[TimedPart]) -> float:
    """Return the mean time of a step."""
    return sum(part.seconds for part in parts) / sum(part.steps for part in parts)
