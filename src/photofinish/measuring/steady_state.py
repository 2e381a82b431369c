"""How long a training step takes that has no data to wait for: the same batch, on the device already, over and over.

It is timed after the training, on a copy of the network, several steps to a sample, the clock waiting for the device
at the two ends of each.
"""

from __future__ import annotations

from dataclasses import dataclass

from photofinish.results.records import SteadyState
from photofinish.training.clock import Clock
from photofinish.training.trainer import WARM_UP_STEPS, Trainer

_SAMPLES = 10
_LEAST_SAMPLES = 5
"""for an interval"""
_MOST_STEPS = 50
_MOST_SECONDS = 0.5
_LEAST_SECONDS = 0.05
_MOST_SHARE = 0.02
"""of the training's time"""


@dataclass(frozen=True)
class SamplePlan:
    samples: int
    steps: int


def plan_samples(step_seconds: float, training_seconds: float) -> SamplePlan:
    """So many samples of so many steps as fit into the time there is: 2 % of the training, and half a second at most.

    Slow steps may take longer than that half second, if there are just enough samples for an interval.
    """
    allowed_seconds = _MOST_SHARE * training_seconds
    seconds = min(_MOST_SECONDS, max(_LEAST_SECONDS, allowed_seconds))
    steps = int(seconds / step_seconds)
    if steps >= _SAMPLES:
        return SamplePlan(_SAMPLES, min(_MOST_STEPS, steps // _SAMPLES))
    if _LEAST_SAMPLES * step_seconds <= max(seconds, allowed_seconds):
        return SamplePlan(max(_LEAST_SAMPLES, steps), 1)
    return SamplePlan(max(1, steps), 1)


def measure_steps(trainer: Trainer, clock: Clock, plan: SamplePlan) -> SteadyState:
    return measure_by_turns(trainer, clock, plan)[0]


def measure_by_turns(trainer: Trainer, clock: Clock, plan: SamplePlan, *other_images: int) -> list[SteadyState]:
    """Of the batch, and of batches of so many other images: a sample of each in turn, so that a slow spell of the
    machine is no more in the one than in the other."""
    with trainer.rehearsed_step(*other_images) as steps:
        seconds: list[list[float]] = [[] for _ in steps]
        for step in steps:
            for _ in range(WARM_UP_STEPS):
                step()
        for _ in range(plan.samples):
            for step, taken in zip(steps, seconds, strict=True):
                started_seconds = clock.now_seconds()
                for _ in range(plan.steps):
                    step()
                taken.append(clock.now_seconds() - started_seconds)
    return [SteadyState(steps_per_sample=plan.steps, sample_seconds=tuple(taken)) for taken in seconds]
