"""Error of estimating a GPU's step from its data sheet: `python -m benchmarks.published.fit`.

The estimate is a weighted sum of two times: the operations at the peak rate, by precision, and
writing and reading the saved tensors. The weights are fitted on published speeds, without those of
the estimated accelerator. The report shows an estimate if 9 of 10 are within a factor of 2.
"""

from __future__ import annotations

import statistics

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from benchmarks.published import Published, published

_BYTES = {"fp32": 1.0, "tf32": 1.0, "fp16": 0.5}
"""Share of the bytes counted in fp32."""


def main() -> None:
    """Print the error of each estimate, and of all."""
    speeds = [each for each in published() if each.accelerator.kind != "cpu"]
    found = errors(speeds)
    for each, factor in found:
        print(
            f"{factor:5.2f}  {each.model} {each.precision} {each.layout} on {each.accelerator.name}"
        )
    print("constants:", fitted(speeds).round(2))
    factors = [factor for _, factor in found]
    middle, most = statistics.median(factors), np.quantile(factors, 0.9)
    print(f"{len(factors)}: median {middle:.2f}, 90 % {most:.2f}")


def errors(speeds: list[Published]) -> list[tuple[Published, float]]:
    """Return each speed with the factor by which its estimate is too high or too low."""
    found = []
    for name in dict.fromkeys(each.accelerator.name for each in speeds):
        constants = fitted([each for each in speeds if each.accelerator.name != name])
        for each in (each for each in speeds if each.accelerator.name == name):
            ratio = float(np.array(_terms(each)) @ constants) / each.step_seconds
            found.append((each, max(ratio, 1 / ratio)))
    return found


def fitted(speeds: list[Published]) -> NDArray[np.float64]:
    """The least sum of squares of relative errors, none of the constants below 0."""
    terms = np.array([np.array(_terms(each)) / each.step_seconds for each in speeds])
    constants: NDArray[np.float64] = nnls(terms, np.ones(len(speeds)))[0]
    return constants


def _terms(each: Published) -> list[float]:
    sheet, step = each.accelerator, each.operations
    arithmetic = step.flops / ((sheet.best_tflops(each.precision) or np.inf) * 1e12)
    memory = step.saved_tensor_bytes * _BYTES[each.precision] / (sheet.memory_gb_per_s * 1e9)
    return [arithmetic * (each.precision == kind) for kind in _BYTES] + [memory]


if __name__ == "__main__":
    main()
