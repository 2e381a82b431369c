"""Noise of repeated times."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def robust_deviation(values: Sequence[float]) -> float:
    """Return the standard deviation by the median absolute deviation, for normal numbers."""
    median = statistics.median(values)
    return 1.4826 * statistics.median(abs(value - median) for value in values)
