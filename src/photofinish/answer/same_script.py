"""Comparison of a script's first steps on the CPU and on the GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from photofinish.config.precisions import PRECISIONS
from photofinish.results.measured import FirstScriptSteps, NotedStep

Kind = Literal[
    "identical", "same step", "other step", "unseeded", "other inputs", "other weights",
    "other batches", "draws",
]  # fmt: skip
_EQUAL = 1e-5
"""Relative difference of inputs that are the same."""


@dataclass(frozen=True)
class SameScript:
    """Finding on the first step."""

    kind: Kind
    layer: str = ""
    """Part that differs, if the step does."""


def same_script(
    cpu: FirstScriptSteps, gpu: FirstScriptSteps, precisions: Sequence[str]
) -> SameScript:
    """Compare the first step on both devices, as rounding grows in later ones.

    `precisions` are those of both. If neither is known, any rounding is possible.
    """
    inputs = zip(cpu.inputs, gpu.inputs, strict=False)
    if any(_apart(one, other) > _EQUAL * one[0] for one, other in inputs):
        return SameScript("unseeded" if cpu.seed != gpu.seed else "other inputs")
    here, there = cpu.steps[0], gpu.steps[0]
    if len(here.gradients) != len(there.gradients):
        return SameScript("other step", "the number of weights")
    if cpu.weights != gpu.weights:
        return SameScript("unseeded" if cpu.seed != gpu.seed else "other weights")
    if here == there:
        return SameScript("identical")
    if cpu.draws:
        return SameScript("draws")
    if len(here.losses) != len(there.losses):
        return SameScript("other batches")
    limits = max(PRECISIONS[each].script_rounding for each in precisions or PRECISIONS)
    return _within_rounding(here, there, *limits)


def _within_rounding(here: NotedStep, there: NotedStep, least: float, most: float) -> SameScript:
    largest = max((each[0] for each in here.gradients.values()), default=0.0)
    shares = []
    # By their order: where one device compiles, weights have no names.
    pairs = zip(here.gradients.items(), there.gradients.values(), strict=True)
    for (name, gradient), other in pairs:
        apart, norm = _apart(gradient, other), gradient[0]
        if apart > max(most * norm, least * largest):
            return SameScript("other step", name)
        if norm > least * largest:
            shares.append(apart / norm)
    largest_loss = max(map(abs, here.losses), default=0.0)
    if _apart(here.losses, _without_scale(there.losses, largest_loss)) > least * largest_loss:
        return SameScript("other step", "the loss")
    if min(shares, default=0.0) > least:
        return SameScript("other step", "each gradient")
    return SameScript("same step")


def _without_scale(losses: Sequence[float], largest: float) -> list[float]:
    """Return losses without the factor of a GradScaler, which their gradients don't have."""
    ratio = max(map(abs, losses), default=0.0) / largest if largest else 0.0
    scale = 2.0 ** round(math.log2(ratio)) if ratio else 1.0
    return [each / scale for each in losses]


def _apart(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the distance of two vectors, which is infinite between different numbers of values."""
    return math.dist(one, other) if len(one) == len(other) else math.inf
