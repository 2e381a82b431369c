"""Error of estimating a GPU's step from its data sheet: `python -m benchmarks.published.fit`.

A step takes the longer of two times. The device's is a weighted sum of the operations at the peak
rate, by precision, and of moving the saved tensors. The host's is a launch for each kernel. The
weights are fitted on published speeds, without the estimated accelerator's. What each kernel adds
in a CUDA graph is fitted on steps that an H100 took, without the estimated network's.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from benchmarks.published import Step, measured, published
from photofinish.answer.estimates import (
    CONVOLUTION_SECONDS,
    LONG_STEP_SECONDS,
    LONG_STEPS_WITHIN,
    TIME_STEP_SECONDS,
    StepEstimate,
    estimate_step,
    estimated_device_seconds,
)
from photofinish.config.compare import Accelerator

_RATES = {"fp32": "fp32", "tf32": "tf32", "fp16": "fp16", "bf16": "fp16"}
"""Precisions, with the one whose share of the peak rate they have."""
_COUNTED_IN_FP32 = "fp16"
"""Precision of steps that were counted in fp32 and keep half as many bytes."""
_SHORTER = "fp32", "tf32", "bf16", "fp16"
_FIRST_LAUNCH_SECONDS, _ROUNDS = 60e-6, 6

Constants = tuple[NDArray[np.float64], float]
"""Weights of the device's times, and seconds of a launch, of the usual host."""


LEFT_OUT: dict[str, Callable[[Step], str]] = {
    "accelerator": lambda each: each.accelerator.name,
    "repository": lambda each: each.source.partition(":")[0],
    "network": lambda each: each.job,
}
"""Groups of speeds to leave out of an estimate's fit, by their name."""


def main() -> None:
    """Print the error of each estimate, and of each kind."""
    speeds = published()
    for name, left_out in LEFT_OUT.items():
        kinds = defaultdict(list)
        for each, factor in errors(speeds, left_out):
            kinds[kind(each)].append(factor)
            kinds[f"{kind(each)} in {each.precision}"].append(factor)
        print(f"each {name} left out of its fit:")
        for what, factors in sorted(kinds.items()):
            print(f"  {what}, {len(factors)}: {_within(factors)}")
    print(f"by repository, {_by_repository(errors(speeds))}")
    weights, launch_seconds = fitted(speeds)
    slowest_seconds = max(launches(speeds, (weights, launch_seconds)))
    micros = f"{launch_seconds * 1e6:.0f} µs, on the slowest host {slowest_seconds * 1e6:.0f} µs"
    print(f"weights: {weights.round(2)}, a launch: {micros}")
    captured = [step for step in measured() if step.is_captured]
    kernel, convolution, time_step = 1e6 * beside_weights(captured)
    print(
        f"captured: {kernel:.1f} µs a kernel, {convolution:.0f} a convolution, {time_step:.0f} a "
        f"time step; each network left out: {_within(errors_of_captured(captured))}"
    )
    print("measured on an H100, and unseen: step / estimate, and its interval")
    for step, estimate in estimates_of([*measured(), *measured("unseen")]):
        low, expected, high = (seconds * 1e6 for seconds in estimate.spread)
        took, steps = step.seconds * 1e6, "graph" if step.is_captured else "eager"
        inside = "" if low <= took <= high else "  outside"
        what = f"{step.job}, {step.precision}, {steps}: {took:,.0f} µs"
        print(f"{took / expected:5.2f}  {what} ({low:,.0f} to {high:,.0f}){inside}")


def estimates_of(steps: list[Step]) -> list[tuple[Step, StepEstimate]]:
    """Return each step that was measured, with its estimate."""
    pairs = []
    for step in steps:
        captured, sheet = step.is_captured, step.accelerator
        found = estimate_step(step.operations, sheet, step.precision, is_captured=captured)
        assert found
        pairs.append((step, found))
    return pairs


def _within(factors: list[float]) -> str:
    return f"median {statistics.median(factors):.2f}, 90 % {np.quantile(factors, 0.9):.2f}"


def _by_repository(found: list[tuple[Step, float]]) -> str:
    """Return how far long steps on CUDA are off in other repositories, as far as these ten show."""
    of_each = defaultdict(list)
    for each, factor in found:
        if kind(each) == "cuda, long steps":
            of_each[LEFT_OUT["repository"](each)].append(factor)
    factors, draw = list(of_each.values()), np.random.default_rng(0)
    most = [
        np.quantile(np.concatenate([factors[place] for place in places]), 0.9)
        for places in draw.integers(len(factors), size=(2000, len(factors)))
    ]
    low, high = np.quantile(most, [0.05, 0.95])
    held = statistics.fmean(float(np.mean(np.array(each) <= LONG_STEPS_WITHIN)) for each in factors)
    return f"{len(factors)}: 90 % {low:.2f} to {high:.2f}; {LONG_STEPS_WITHIN} holds for {held:.0%}"


def beside_weights(steps: list[Step]) -> NDArray[np.float64]:
    """Return what a kernel, an fp32 convolution and a time step add to captured steps."""
    terms = [np.array(_beside_terms(step)) / step.seconds for step in steps]
    rest = [1 - _arithmetic_seconds(step) / step.seconds for step in steps]
    weights: NDArray[np.float64] = nnls(np.array(terms), np.array(rest))[0]
    return weights


def errors_of_captured(steps: list[Step]) -> list[float]:
    """Return the factor by which each estimate is off if its network is left out of the fit."""
    factors = []
    for name in dict.fromkeys(map(_network, steps)):
        weights = beside_weights([step for step in steps if _network(step) != name])
        for step in (step for step in steps if _network(step) == name):
            beside_seconds = float(np.array(_beside_terms(step)) @ weights)
            ratio = (_arithmetic_seconds(step) + beside_seconds) / step.seconds
            factors.append(max(ratio, 1 / ratio))
    return factors


def _network(step: Step) -> str:
    return step.job.partition(",")[0]


def _beside_terms(step: Step) -> list[float]:
    counts, is_fp32 = step.operations, step.precision == "fp32"
    return [counts.kernels, counts.convolutions * is_fp32, counts.time_steps]


def _arithmetic_seconds(step: Step) -> float:
    sheet, counts = step.accelerator, step.operations.model_copy(update={"convolutions": 0})
    precision = sheet.effective_precision(step.precision)
    return estimated_device_seconds(counts, sheet, precision, sheet.tflops[precision])


def kind(each: Step) -> str:
    """Return the kind of accelerator, and of CUDA's steps the kind by their length."""
    length = "long" if each.seconds >= LONG_STEP_SECONDS else "short"
    name = each.accelerator.kind
    return f"{name}, {length} steps" if name == "cuda" else name


def errors(
    speeds: list[Step], left_out: Callable[[Step], str] = LEFT_OUT["accelerator"]
) -> list[tuple[Step, float]]:
    """Return each speed, and the factor by which its estimate without its group is off."""
    found = []
    for name in dict.fromkeys(map(left_out, speeds)):
        constants = fitted([each for each in speeds if left_out(each) != name])
        for each in (each for each in speeds if left_out(each) == name):
            ratio = max(_times(each, constants)) / each.seconds
            found.append((each, max(ratio, 1 / ratio)))
    return found


def fitted(speeds: list[Step]) -> Constants:
    """Fit the device's weights and a launch in turn, each on the steps that it decides."""
    long = [each for each in speeds if each.seconds >= LONG_STEP_SECONDS]
    constants = _weights(long), _FIRST_LAUNCH_SECONDS
    for _ in range(_ROUNDS):
        weights = _weights([each for each in speeds if not _waits_for_host(each, constants)])
        constants = weights, statistics.median(launches(speeds, constants))
    return constants


def launches(speeds: list[Step], constants: Constants) -> list[float]:
    """Return the time of a launch in each step that the host decides."""
    return [
        each.seconds / each.operations.kernels
        for each in speeds
        if _waits_for_host(each, constants)
    ]


def _waits_for_host(each: Step, constants: Constants) -> bool:
    device_seconds, host_seconds = _times(each, constants)
    return host_seconds > device_seconds


def _weights(speeds: list[Step]) -> NDArray[np.float64]:
    """Return the least sum of squares of relative errors, no weight below 0."""
    terms = np.array([np.array(_terms(each)) / each.seconds for each in speeds])
    rest = [1 - _beside_seconds(each) / each.seconds for each in speeds]
    weights: NDArray[np.float64] = nnls(terms, np.array(rest))[0]
    return weights


def _times(each: Step, constants: Constants) -> tuple[float, float]:
    """Return what the device needs and what the host needs."""
    weights, launch_seconds = constants
    device_seconds = float(np.array(_terms(each)) @ weights) + _beside_seconds(each)
    time_steps_seconds = each.operations.time_steps * TIME_STEP_SECONDS[1]
    return device_seconds + time_steps_seconds, launch_seconds * each.operations.kernels


def _beside_seconds(each: Step) -> float:
    """Return the time of fp32 convolutions beside their arithmetic, and of the optimizer."""
    sheet, step = each.accelerator, each.operations
    is_slow = sheet.kind == "cuda" and each.precision == "fp32"
    convolutions_seconds = step.convolutions * CONVOLUTION_SECONDS if is_slow else 0.0
    return convolutions_seconds + step.optimizer_bytes / (sheet.memory_gb_per_s * 1e9)


def _terms(each: Step) -> list[float]:
    sheet, step = each.accelerator, each.operations
    arithmetic = step.flops / (_tflops(sheet, each.precision) * 1e12)
    memory = step.saved_tensor_bytes / (sheet.memory_gb_per_s * 1e9)
    memory *= 0.5 if each.precision == _COUNTED_IN_FP32 else 1.0
    own_rate = _RATES[each.precision]
    return [arithmetic * (own_rate == name) for name in dict.fromkeys(_RATES.values())] + [memory]


def _tflops(sheet: Accelerator, precision: str) -> float:
    """Return the rate in a precision, or in the next shorter precision with a known rate."""
    wanted = _SHORTER[_SHORTER.index(sheet.effective_precision(precision)) :]
    return next((sheet.tflops[name] for name in wanted if name in sheet.tflops), np.inf)


if __name__ == "__main__":
    main()
