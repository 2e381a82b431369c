"""Changes to params.yaml, and what they are predicted to gain."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from photofinish.comparing.step_costs import StepCosts

LEAST_GAIN = 1.1
"""Smallest predicted gain of a suggestion, at the middle of the prediction."""
_UNCLEAR_GAIN = 3.0
RUN_MARGIN = 1.2
"""Margin at both ends of a prediction, for differences between two runs.

Tested on two quiet cores: 47 of 52 predictions were right. With a margin of 1.1, only 9 of 12 were.
"""


class Gain(NamedTuple):
    """Predicted speed-up of an epoch. `low` is 1 if only an upper bound is known."""

    low: float
    high: float

    @classmethod
    def of(cls, costs: StepCosts, low_seconds: float, high_seconds: float) -> Gain:
        """Return the gain if a step with its data takes `low_seconds` to `high_seconds`."""
        fast_seconds, slow_seconds = costs.epoch_share_spread
        low = fast_seconds / high_seconds / RUN_MARGIN
        return cls(low, slow_seconds / low_seconds * RUN_MARGIN)

    @classmethod
    def at_most(cls, costs: StepCosts, shortest_seconds: float) -> Gain:
        return cls(1.0, max(1.0, cls.of(costs, shortest_seconds, shortest_seconds).high))

    @property
    def middle(self) -> float:
        return math.sqrt(self.low * self.high)

    @property
    def is_worth_it(self) -> bool:
        """True if the gain is large enough, and does not range from a loss to a factor above 3."""
        is_unclear = self.low < 1 and self.high > _UNCLEAR_GAIN
        return self.middle >= LEAST_GAIN and not is_unclear


@dataclass(frozen=True)
class Remedy:
    key: str
    value: Any
    predicted: Gain | None
    by: Literal[
        "resident", "pinned", "workers", "batch size", "captured", "bf16", "fewer threads",
        "more threads", "tried threads", "tried workers", "decode once", "resident once",
        "batch transform",
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
