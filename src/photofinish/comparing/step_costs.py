"""What an epoch is made of, in seconds for each of its steps: the figures that a diagnosis rests on."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from photofinish.params.experiment import Experiment
from photofinish.results.measurements import Attribution
from photofinish.results.records import Timings
from photofinish.wording import at_most

PARTS = {
    "waiting for data": "waiting_seconds",
    "copying to the device": "copying_seconds",
    "forward": "forward_seconds",
    "backward": "backward_seconds",
    "optimiser": "optimizer_seconds",
    "the rest": "rest_seconds",
}
"""of a step, in their order: in words, and in the record"""
_HIDDEN_SHARE = 0.8
"""A host that hands out a step in less of the step's time is clearly ahead of the device. Then the step on few images
may wait for the host, and the one on the batch doesn't: no line goes through the two."""

RUN_TO_RUN = 0.2
"""what a prediction leaves at both ends for one training being faster or slower than the next: 47 of 52 held in two
rounds of `python -m benchmarks.predictions`, each of 48 tries on two quiet cores; with half of it, 9 of 12 did"""


class Gain(NamedTuple):
    """How many times as fast: between these two. From 1 on where the second is known alone."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        """What is as many times above the low end as below the high one."""
        return math.sqrt(self.low * self.high)

    def __str__(self) -> str:
        if self.low == 1:
            return f"at most {at_most(self.high)} times as fast"
        return f"{times(self.low).removesuffix(' times')} to {times(self.high)} as fast"


@dataclass(frozen=True)
class StepCosts:
    """All in seconds a step; medians, or means over an epoch where an epoch's first step is like no other."""

    attribution: Attribution
    """what they are of"""
    steps_per_epoch: int
    steps_timed: int
    """after the training: taken apart or, if those were fewer, over and over on one batch"""
    epoch_share_seconds: float
    """the median epoch's training time over its steps: what a step takes with all that belongs to it"""
    epoch_share_spread: tuple[float, float]
    """the same of a fast epoch and of a slow one"""
    step_alone_seconds: float
    """a step whose batch lies on the device already: the steady state"""
    batch_alone_seconds: float
    """a batch with no step in between: what the input path takes when nothing else is to be done"""
    copying_seconds: float
    parts_seconds: dict[str, float]
    """of a step that was taken apart, by their names in words"""
    fixed_seconds: float
    """of the step alone, what it takes however few images it has; nothing where the device hides what the host takes"""
    issuing_is_hidden: bool
    """an accelerator works longer on a step than the host takes to hand it out"""
    loads_ahead: bool
    """worker processes load the next batches during a step"""

    @property
    def shares(self) -> dict[str, float]:
        """Of a step that was taken apart."""
        whole_seconds = sum(self.parts_seconds.values())
        return {part: seconds / whole_seconds for part, seconds in self.parts_seconds.items()}

    @property
    def busy_share(self) -> float:
        """Of an epoch: how much of it the device would need for its steps alone. An accelerator waits for the host
        within its steps too, so for one this is the most that it may be."""
        return min(1.0, self.step_alone_seconds / self.epoch_share_seconds)

    @property
    def beside_step_seconds(self) -> float:
        """Of an epoch, a step, what the step alone doesn't take: its data, as far as the step waits for it."""
        return max(0.0, self.epoch_share_seconds - self.step_alone_seconds)

    @property
    def input_seconds(self) -> float:
        """What an epoch takes a step if the steps themselves took no time."""
        if self.loads_ahead:
            return max(self.batch_alone_seconds, self.copying_seconds)
        return self.batch_alone_seconds + self.copying_seconds

    @property
    def images_seconds(self) -> float:
        """Of the step alone, what grows with the images of its batch."""
        return self.step_alone_seconds - self.fixed_seconds

    def gain(self, low_seconds: float, high_seconds: float) -> Gain:
        """Of an epoch whose steps took between so long and so long each, with all that belongs to them."""
        fast_seconds, slow_seconds = self.epoch_share_spread
        margin = 1 + RUN_TO_RUN
        return Gain(fast_seconds / high_seconds / margin, slow_seconds / low_seconds * margin)

    def at_most(self, shortest_seconds: float) -> Gain:
        """Of an epoch whose steps can't be shorter than that."""
        return Gain(1.0, max(1.0, self.gain(shortest_seconds, shortest_seconds).high))


def step_costs(experiment: Experiment, timings: Timings, attribution: Attribution) -> StepCosts:
    """Of one training, from the steps that were taken apart after it."""
    steps = -(-timings.training_image_count // experiment.batch_size)
    loads_ahead = experiment.input.name == "loader" and experiment.input.workers > 0
    parts = {
        name: over_an_epoch(getattr(attribution.parts, field), steps, loads_ahead) for name, field in PARTS.items()
    }
    batch_alone_seconds = over_an_epoch(attribution.batch_alone_seconds, steps, loads_ahead)
    if not loads_ahead:  # then both passes took the same, and what else goes on in a machine only ever slows one
        batch_alone_seconds = min(batch_alone_seconds, parts["waiting for data"])
    step_alone_seconds = statistics.median(timings.steady_state.step_seconds)
    fixed = fixed_share(
        min(experiment.batch_size, timings.training_image_count),
        min(attribution.same_batch.step_seconds),
        attribution.other_batch_images,
        min(attribution.other_batch.step_seconds),
    )
    hidden = bool(attribution.issuing_seconds) and (
        min(attribution.issuing_seconds) < _HIDDEN_SHARE * min(attribution.same_batch.step_seconds)
    )
    return StepCosts(
        attribution=attribution,
        steps_per_epoch=steps,
        steps_timed=min(len(attribution.parts.forward_seconds), len(timings.steady_state.sample_seconds)),
        epoch_share_seconds=timings.median_epoch_seconds / steps,
        epoch_share_spread=spread([seconds / steps for seconds in timings.epoch_seconds]),
        step_alone_seconds=step_alone_seconds,
        batch_alone_seconds=batch_alone_seconds,
        copying_seconds=parts["copying to the device"],
        parts_seconds=parts,
        fixed_seconds=0.0 if hidden else fixed * step_alone_seconds,
        issuing_is_hidden=hidden,
        loads_ahead=loads_ahead,
    )


def fixed_share(images: int, seconds: float, other_images: int, other_seconds: float) -> float:
    """Of the step on so many images, what it would take with none: by the line through it and the other batch size.

    From the quickest steps of each: what else goes on in a machine only ever makes some of them slower.
    """
    if images == other_images:
        return 0.0
    an_image_seconds = (seconds - other_seconds) / (images - other_images)
    return min(1.0, max(0.0, 1 - images * an_image_seconds / seconds))


def spread(values: Sequence[float]) -> tuple[float, float]:
    """What a tenth of them lie below, and a tenth above."""
    if len(values) == 1:
        return values[0], values[0]
    low, *_, high = statistics.quantiles(values, n=10, method="inclusive")
    return low, high


def times(gain: float) -> str:
    """`2.50 times`, `12 times`."""
    return f"{gain:.2f} times" if gain < 9.995 else f"{gain:.0f} times"


def over_an_epoch(values: Sequence[float], steps: int, are_uneven: bool) -> float:
    """The mean over so many steps, of which the first is the first here and the others are like the others here: their
    median, but their mean where it belongs to them to be uneven. Of two workers' batches, every other comes at once.
    """
    first, *others = values
    if not others:
        return first
    other = statistics.fmean(others) if are_uneven else statistics.median(others)
    return other + (first - other) / steps
