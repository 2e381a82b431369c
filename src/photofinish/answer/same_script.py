"""Comparison of a script's first steps on the CPU and on the GPU."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from photofinish.answer.parity import distance
from photofinish.config.precisions import PRECISIONS, ScriptRounding
from photofinish.results.trained import FirstScriptSteps

Kind = Literal[
    "identical", "same step", "other step", "unseeded", "other inputs", "other weights",
    "other batches", "draws",
]  # fmt: skip
_EQUAL = 1e-5
"""Relative difference of inputs that are the same."""
_OVER_USUAL = 8.0
"""Factor, by hand, by which rounding changes a gradient more than most. It was at most 6.4."""


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
    if any(distance(one, other) > _EQUAL * one[0] for one, other in inputs):
        return SameScript("unseeded" if cpu.seed != gpu.seed else "other inputs")
    if len(cpu.gradients) != len(gpu.gradients):
        return SameScript("other step", "the number of weights")
    if cpu.weights != gpu.weights:
        return SameScript("unseeded" if cpu.seed != gpu.seed else "other weights")
    if (cpu.losses, cpu.gradients) == (gpu.losses, gpu.gradients):
        return SameScript("identical")
    if cpu.draws:
        return SameScript("draws")
    if len(cpu.losses) != len(gpu.losses):
        return SameScript("other batches")
    limits = max(PRECISIONS[each].script_rounding for each in precisions or PRECISIONS)
    return _within_rounding(cpu, gpu, limits)


def _within_rounding(
    cpu: FirstScriptSteps, gpu: FirstScriptSteps, limits: ScriptRounding
) -> SameScript:
    noise = limits.loss * max((norm for norm, *_ in cpu.gradients.values()), default=0.0)
    shares = {}
    # By their order: where one device compiles, weights have no names.
    for (name, one), other in zip(cpu.gradients.items(), gpu.gradients.values(), strict=True):
        if (norm := max(one[0], other[0])) > noise:
            shares[name] = distance(one, other) / norm
    # Rounding that grows in a deep network changes most gradients, and a fault may change one.
    usual = statistics.median_low(shares.values() or [0.0])
    limit = min(limits.most, max(limits.one, _OVER_USUAL * usual))
    for name, share in shares.items():
        if share > limit:
            return SameScript("other step", name)
    largest_loss = max(map(abs, cpu.losses), default=0.0)
    losses = _without_scale(gpu.losses, largest_loss)
    if math.dist(cpu.losses, losses) > limits.loss * largest_loss:
        return SameScript("other step", "the loss")
    if min(shares.values(), default=0.0) > limits.each:
        return SameScript("other step", "each gradient")
    return SameScript("same step")


def _without_scale(losses: Sequence[float], largest: float) -> list[float]:
    """Return losses without the factor of a GradScaler, which their gradients don't have."""
    ratio = max(map(abs, losses), default=0.0) / largest if largest else 0.0
    scale = 2.0 ** round(math.log2(ratio)) if ratio else 1.0
    return [each / scale for each in losses]
