"""Table of the precisions of products, which settings, estimates and comparisons use."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple


class ScriptRounding(NamedTuple):
    """Largest relative differences of a script's first step that are rounding.

    In 18 networks on a CPU, with other threads, without oneDNN, in other memory formats and orders
    of summing, rounding needed the shares in brackets of it in float32, and in TF32 and bfloat16.
    Deep networks with BatchNorm need most, on batches of eight images.
    """

    loss: float
    """That of the loss (0.25; 0.5), and a gradient's share of the largest one."""
    each: float
    """That of the gradient that differs least (0.5; 0.5). Another forward pass changes all."""
    one: float
    """That of any gradient (0.3; 0.5), unless most gradients differ by an eighth of it."""
    most: float
    """That of any gradient if they do (0.5). In TF32 and bfloat16, nothing may be left of it."""


@dataclass(frozen=True)
class PrecisionFacts:
    """What depends on a precision, known without torch."""

    times_the_arithmetic: float
    """Ratio of the operations' time to their time at the peak rate, fitted on published speeds.

    That of fp64, without published speeds, is that of fp32. bf16 and fp16 have one.
    """
    moved_by: float
    """Relative change of each weight, to see what rounding may change in a first step.

    For fp32 it is far more than one rounding (2**-24), because libraries differ by dozens of
    roundings (docs/method.md).
    """
    script_rounding: ScriptRounding
    curve_tolerance: float
    """Largest relative difference of an epoch's mean loss that counts as rounding, by hand."""
    autocast: str | None = None
    """Name of torch's type for autocast, if the precision needs one."""


_SINGLE = ScriptRounding(2.0**-14, 2.0**-15, 2.0**-5, 2.0**-3)
_HALF = ScriptRounding(2.0**-7, 2.0**-3, 2.0**-4, math.inf)
_BF16 = ScriptRounding(2.0**-4, 1.0, 2.0**-2, math.inf)
_FP16 = ScriptRounding(2.0**-7, 2.0**-3, 2.0**-1, math.inf)  # ConvNeXt: 27 %
PRECISIONS = {
    "fp64": PrecisionFacts(0.88, 2**-15, _SINGLE, 1e-2),
    "fp32": PrecisionFacts(0.88, 2**-15, _SINGLE, 1e-2),
    "tf32": PrecisionFacts(0.97, 2**-11, _HALF, 5e-2),
    "bf16": PrecisionFacts(1.04, 2**-8, _BF16, 1e-1, "bfloat16"),
    "fp16": PrecisionFacts(1.04, 2**-11, _FP16, 5e-2, "float16"),
}

if TYPE_CHECKING:
    Precision = str
    TrainingPrecision = str
else:
    Precision = Literal[tuple(PRECISIONS)]
    # A network whose own tensors are float64 computes in double at fp32.
    TrainingPrecision = Literal[tuple(name for name in PRECISIONS if name != "fp64")]


def curve_tolerance(*precisions: str) -> float:
    """Return the largest difference of two curves that is rounding."""
    return max(PRECISIONS[precision].curve_tolerance for precision in precisions)
