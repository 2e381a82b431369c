"""Whether a script takes the same first steps on the CPU and on the GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from photofinish.results.measured import FirstScriptSteps

Kind = Literal["identical", "same steps", "steps apart", "other inputs", "other weights", "draws"]
_SINGLE, _HALF = (1.0, 2.0**-17), (8.0, 2.0**-11)
_ROUNDING = {
    "fp64": _SINGLE, "fp32": _SINGLE, "tf32": _HALF, "fp16": _HALF, "bf16": (64.0, 2.0**-8)
}  # fmt: skip
"""Differences that are rounding, by the precision of products.

The first is a multiple of what moving each weight by 2^-15 changes, the second a share of the
largest gradient. Two threads instead of one needed 0.09 of that multiple in float32, and planted
faults 5 and more (docs/ask.md). Float32 instead of bfloat16 needed 26 of it.
"""
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
    factor, least = _ROUNDING[precision]
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
            if _apart(one, other) > max(least * size, factor * _apart(one, changed)):
                return SameScript("steps apart", number, name)
    return SameScript("same steps", min(len(cpu.steps), len(gpu.steps)))


def _apart(one: Sequence[float], other: Sequence[float] | None) -> float:
    """Return the distance of two vectors, or infinity if it is not known."""
    if other is None or len(one) != len(other):
        return math.inf
    distance = 0.0 if one == other else math.dist(one, other)
    return math.inf if math.isnan(distance) else distance
