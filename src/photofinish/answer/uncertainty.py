"""Uncertain times: each is an estimate with the errors of its logarithm, and so are their ratios.

An error of 0.1 is 10 %. Errors with different causes are independent, so their variances add. Of a
job's time that are, each by its share of the job:

* the start-up, which was timed once
* the mean of the timed epochs, if others are left (`error_of_mean`)
* the machine's speed, which differs from one process to the next (`MACHINE`)

Most variances are estimated from few values. Their degrees of freedom combine by Welch and
Satterthwaite, and an interval ends at Student's quantiles of 5 and 95 %.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

HELD = 0.9
"""Share of intervals that contain the true value."""
_MOST_BATCHES, _MOST_CORRELATION = 6, 0.8
"""Means of consecutive epochs, and their largest correlation, chosen on simulated jobs."""
_NORMAL = statistics.NormalDist().inv_cdf((1 + HELD) / 2)

Interval = tuple[float, float]


class LogError(NamedTuple):
    """Variance of a logarithm, and the degrees of freedom with which it is known."""

    variance: float = 0.0
    freedom: float = math.inf
    least: float = 0.0
    """Half width by one cause alone. Others would narrow it if their variances are known better."""

    @classmethod
    def reaching(cls, factor: float) -> LogError:
        """Return the error whose interval reaches this factor, or its inverse."""
        return cls((math.log(factor) / _NORMAL) ** 2 if factor else math.inf)

    @property
    def half_width(self) -> float:
        """Distance from the estimate to the interval's end."""
        return max(self.least, students_t(self.freedom) * math.sqrt(self.variance))

    def times(self, share: float) -> LogError:
        """Return the error of a sum, if this share of it has this error."""
        if not share:
            return NONE
        return LogError(share**2 * self.variance, self.freedom, share * self.least)


NONE, UNBOUNDED = LogError(), LogError(math.inf)
MACHINE = LogError(0.06**2, 2.0)
"""Difference between the speed of a job in one process and in another.

The means of six processes, each of four minutes, differed by 6 to 8 % on a quiet machine.
"""


def combined(*errors: LogError) -> LogError:
    """Return the error of a product of independent factors."""
    variance = sum(each.variance for each in errors)
    if not 0 < variance < math.inf:
        return LogError(variance)
    doubt = sum(each.variance**2 / each.freedom for each in errors)
    freedom = variance**2 / doubt if doubt else math.inf
    return LogError(variance, freedom, max(each.half_width for each in errors))


@dataclass(frozen=True)
class UncertainTime:
    """Estimate of a time. It may be faster by one error and slower by another."""

    seconds: float
    faster: LogError = NONE
    slower: LogError = NONE

    @property
    def interval(self) -> Interval:
        return self.over(UncertainTime(1.0))

    def with_errors(self, *errors: LogError) -> UncertainTime:
        """Return this time with further errors in both directions."""
        sides = (combined(each, *errors) for each in (self.faster, self.slower))
        return UncertainTime(self.seconds, *sides)

    def reaching(self, least_seconds: float) -> UncertainTime:
        """Return this time with an interval that reaches down to another time."""
        further = LogError.reaching(min(1.0, least_seconds / self.seconds))
        return UncertainTime(self.seconds, combined(self.faster, further), self.slower)

    def over(self, other: UncertainTime) -> Interval:
        """Return the interval of the ratio of two independent times."""
        ratio = self.seconds / other.seconds
        low, high = combined(self.faster, other.slower), combined(self.slower, other.faster)
        return ratio * math.exp(-low.half_width), ratio * math.exp(high.half_width)

    def less(self, other: UncertainTime) -> Interval:
        """Return the interval of the difference of two independent times."""
        middle = self.seconds - other.seconds
        return middle - _below(self, other), middle + _below(other, self)


def _below(long: UncertainTime, short: UncertainTime) -> float:
    """Return the distance from the difference of two times to the lower end of its interval.

    Distances of independent times add as squares (Zou and Donner 2008), here with one quantile.
    """
    errors = long.faster.times(long.seconds), short.slower.times(short.seconds)
    quantile = students_t(combined(*errors).freedom)
    down = long.seconds * -math.expm1(-quantile * math.sqrt(long.faster.variance))
    up = short.seconds * math.expm1(quantile * math.sqrt(short.slower.variance))
    low, high = long.interval[0], short.interval[1]
    return max(math.hypot(down, up), long.seconds - low, high - short.seconds)


def total(times: Sequence[UncertainTime]) -> UncertainTime:
    """Return the sum of times whose errors have one cause, such as the machine: their ends add."""
    if len(times) == 1:
        return times[0]
    seconds = sum(each.seconds for each in times)
    low, high = (sum(each.interval[end] / seconds for each in times) for end in (0, 1))
    return UncertainTime(seconds, LogError.reaching(low), LogError.reaching(high))


def error_of_mean(values: Sequence[float]) -> LogError:
    """Return the error of the mean of values in the order of time, which may drift.

    It is that of up to six means of consecutive values. Their correlation makes it larger. A single
    value has no error that is known.
    """
    if len(values) == 1:
        return UNBOUNDED
    batches = np.array_split(values, min(_MOST_BATCHES, len(values)))
    means = [float(np.mean(batch)) for batch in batches]
    count, middle = len(means), statistics.fmean(means)
    apart = [each - middle for each in means]
    squares = sum(each**2 for each in apart)
    if not squares:
        return NONE
    products = sum(one * other for one, other in pairwise(apart))
    # The correlation of few values is estimated too low, by about 1 / count.
    correlation = min(max(0.0, products / squares + 1 / count), _MOST_CORRELATION)
    variance = squares / (count - 1) / count / middle**2
    return LogError(variance * (1 + correlation) / (1 - correlation), count - 1)


def students_t(freedom: float) -> float:
    """Return the half width of a mean's interval, in standard errors.

    By Abramowitz and Stegun 26.7.5, with a fifth term that makes it exact for one degree of
    freedom. It is off by 0.15 % at most. SciPy would take 0.2 s to import in each measurement.
    """
    x = _NORMAL
    terms = [
        x,
        (x**3 + x) / 4,
        (5 * x**5 + 16 * x**3 + 3 * x) / 96,
        (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / 384,
        (79 * x**9 + 776 * x**7 + 1482 * x**5 - 1920 * x**3 - 945 * x) / 92160,
    ]
    terms.append(math.tan(HELD * math.pi / 2) - sum(terms))
    return sum(term * freedom**-power for power, term in enumerate(terms))
