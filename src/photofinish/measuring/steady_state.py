"""How long a training step takes that has no data to wait for: the same batch, on the device already, over and over.

It is timed after the training, on a copy of the network, several steps to a sample, the clock waiting for the device
at the two ends of each.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from photofinish.measuring.rehearsal import WARM_UP_STEPS, rehearsed_steps
from photofinish.results.measurements import SteadyState
from photofinish.training.trainer import Trainer

_SAMPLES = 10
_LEAST_SAMPLES = 5
"""for an interval"""
_MOST_STEPS = 50
_MOST_SECONDS = 0.5
_MOST_SECONDS_OF_SLOW_STEPS = 1.0
_LEAST_SECONDS = 0.05
_MOST_SHARE = 0.02
"""of the training's time"""


@dataclass(frozen=True)
class SamplePlan:
    """How often steps are timed, and how many at once."""

    samples: int
    steps: int


def plan_samples(step_seconds: float, training_seconds: float) -> SamplePlan:
    """So many samples of so many steps as fit into the time there is: 2 % of the training, and half a second at most.

    Slow steps may take longer than that half second, if there are just enough samples for an interval; of those that
    are too slow for that, as many are taken as a second holds.
    """
    allowed_seconds = _MOST_SHARE * training_seconds
    seconds = min(_MOST_SECONDS, max(_LEAST_SECONDS, allowed_seconds))
    steps = int(seconds / step_seconds)
    if steps >= _SAMPLES:
        return SamplePlan(_SAMPLES, min(_MOST_STEPS, steps // _SAMPLES))
    slow_seconds = max(_MOST_SECONDS_OF_SLOW_STEPS, allowed_seconds)
    return SamplePlan(max(1, steps, min(_LEAST_SAMPLES, int(slow_seconds / step_seconds))), 1)


def measure_steps(trainer: Trainer, plan: SamplePlan, layout: torch.memory_format | None = None) -> SteadyState:
    """Steps on the first batch, in the training's own order of memory or another."""
    return measure_by_turns(trainer, plan, layout=layout)[0]


def measure_by_turns(
    trainer: Trainer, plan: SamplePlan, *other_images: int, layout: torch.memory_format | None = None
) -> list[SteadyState]:
    """Of the batch, and of batches of so many other images: a sample of each in turn, so that a slow spell of the
    machine is no more in the one than in the other."""
    with rehearsed_steps(trainer, *other_images, layout=layout, at_once=plan.steps) as all_steps:
        seconds: list[list[float]] = [[] for _ in all_steps]
        for steps in all_steps:
            for _ in range(-(-WARM_UP_STEPS // plan.steps)):
                steps()
        for _ in range(plan.samples):
            for steps, taken in zip(all_steps, seconds, strict=True):
                started_seconds = trainer.clock.now_seconds()
                steps()
                taken.append(trainer.clock.now_seconds() - started_seconds)
    return [SteadyState(steps_per_sample=plan.steps, sample_seconds=tuple(taken)) for taken in seconds]
