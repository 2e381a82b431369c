"""Whether a script takes the same first steps on the CPU and on the GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from photofinish.results.measured import FirstScriptSteps

Kind = Literal["identical", "same steps", "steps apart", "other inputs", "other weights", "draws"]
_ROUNDING = {"fp32": 1.0, "fp64": 1.0, "tf32": 8.0, "fp16": 8.0, "bf16": 64.0}
"""Rounding of a precision's products, as a multiple of 2^-15 by which weights are moved."""
_LEAST = 2.0**-17
"""Difference that is always rounding, as a share of the largest gradient: 128 times a float32's."""
_EQUAL = 1e-5
"""Relative difference of inputs that are the same."""


@dataclass(frozen=True)
class SameScript:
    """Finding on the first steps."""

    kind: Kind
    steps: int = 0
    """Number of steps that are the same, or of the first that is not."""
    layer: str = ""


def same_script(
    cpu: FirstScriptSteps, gpu: FirstScriptSteps, moved: FirstScriptSteps, precision: str
) -> SameScript:
    """Compare the first steps on both devices, by what moved weights change on the CPU."""
    inputs = zip(cpu.inputs, gpu.inputs, strict=False)
    if any(_apart(one, other) > _EQUAL * one[0] for one, other in inputs):
        return SameScript("other inputs")
    if cpu.weights != gpu.weights:
        return SameScript("other weights")
    if cpu.steps == gpu.steps:
        return SameScript("identical", len(cpu.steps))
    if cpu.draws:
        return SameScript("draws")
    factor = _ROUNDING[precision]
    for number, (here, there, by_moving) in enumerate(
        zip(cpu.steps, gpu.steps, moved.steps, strict=False), 1
    ):
        largest = max((each[0] for each in here.gradients.values()), default=0.0)
        values = {
            name: (gradient, there.gradients.get(name), by_moving.gradients.get(name), largest)
            for name, gradient in here.gradients.items()
        }
        largest_loss = max(map(abs, here.losses), default=0.0)
        values["the loss"] = here.losses, there.losses, by_moving.losses, largest_loss
        for name, (one, other, changed, size) in values.items():
            if _apart(one, other) > factor * max(_LEAST * size, _apart(one, changed)):
                return SameScript("steps apart", number, name)
    return SameScript("same steps", min(len(cpu.steps), len(gpu.steps)))


def _apart(one: Sequence[float], other: Sequence[float] | None) -> float:
    """Return the distance of two vectors, or infinity if it is not known."""
    if other is None or len(one) != len(other):
        return math.inf
    distance = 0.0 if one == other else math.dist(one, other)
    return math.inf if math.isnan(distance) else distance
