"""Changes to params.yaml, and what they are predicted to gain."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from photofinish.answer.step_costs import StepCosts
from photofinish.results.job_times import JobTimes

RUN_MARGIN = 1.2
"""Margin at both ends of a prediction, for differences between two runs.

Tested on two quiet cores: 47 of 52 predictions were right. With a margin of 1.1, only 9 of 12 were.
"""


class Gain(NamedTuple):
    """Predicted speed-up of an epoch."""

    low: float
    high: float

    @classmethod
    def of(cls, costs: StepCosts, low_seconds: float, high_seconds: float) -> Gain:
        """Return the gain if a step with its data takes `low_seconds` to `high_seconds`."""
        fast_seconds, slow_seconds = costs.epoch_share_spread
        low = fast_seconds / high_seconds / RUN_MARGIN
        return cls(low, slow_seconds / low_seconds * RUN_MARGIN)

    @property
    def middle(self) -> float:
        return math.sqrt(self.low * self.high)

    def of_job(self, times: JobTimes) -> Gain:
        """Return the speed-up of the whole job, of which only the epochs get faster."""
        share = times.passes_seconds / times.whole_seconds
        return Gain(*(1 / (1 - share + share / gain) for gain in self))

    @property
    def is_worth_it(self) -> bool:
        """True if even the low end is a gain. A change that was not tried may lose."""
        return self.low > 1


@dataclass(frozen=True)
class Remedy:
    key: str
    value: Any
    predicted: Gain
    by: Literal[
        "resident", "batch size", "captured", "bf16", "tried threads", "tried workers",
        "decode once", "resident once", "batch transform",
    ]  # fmt: skip
    also: tuple[tuple[str, Any], ...] = ()
    """Other keys that must change too, with their values."""

    @property
    def changes_model(self) -> bool:
        """Return True if a training with the change learns something else, or may do so."""
        return self.by in ("batch size", "captured", "bf16", "batch transform")

    @property
    def settings(self) -> dict[str, Any]:
        """Return all keys of params.yaml that change, and their values."""
        return {self.key: self.value, **dict(self.also)}
