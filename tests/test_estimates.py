"""Estimates of a step on an accelerator, and their error on published training speeds."""

from __future__ import annotations

import statistics
import sys
from collections import defaultdict

import numpy as np
import pytest
from conftest import ROOT, MakeExperiment
from result_files import STEP

sys.path.insert(0, str(ROOT))  # the benchmarks are beside the package, not in it

from benchmarks.published import published
from benchmarks.published.fit import errors, fitted, kind, launches
from photofinish.comparing.estimates import (
    CAPTURED_LAUNCH_SECONDS,
    LAUNCH_SECONDS,
    LONG_STEPS_WITHIN,
    OTHERS_WITHIN,
    TIMES_THE_ARITHMETIC,
    TIMES_WHAT_IS_SAVED,
    estimate_step,
)
from photofinish.config.compare import accelerators

SMALL = STEP.model_copy(update={"flops": 10**6, "saved_tensor_bytes": 10**3, "kernels": 478})


def test_constants_and_errors_are_those_of_published_speeds() -> None:
    """Each accelerator is estimated by constants that were fitted without it."""
    speeds = [each for each in published() if each.accelerator.kind != "cpu"]
    weights, launch_seconds = fitted(speeds)
    constants = [*TIMES_THE_ARITHMETIC.values(), TIMES_WHAT_IS_SAVED]
    assert weights == pytest.approx(constants, rel=0.01)
    assert launch_seconds == pytest.approx(LAUNCH_SECONDS[1], rel=0.01)
    found = launches(speeds, (weights, launch_seconds))
    assert LAUNCH_SECONDS[0] < min(found) < max(found) == pytest.approx(LAUNCH_SECONDS[2], rel=0.01)
    kinds = defaultdict(list)
    for each, factor in errors(speeds):
        kinds[kind(each)].append(factor)
    within = {name: float(np.quantile(factors, 0.9)) for name, factors in kinds.items()}
    assert within["cuda, long steps"] == pytest.approx(LONG_STEPS_WITHIN, abs=0.01)
    assert max(within["cuda, short steps"], within["rocm"]) < OTHERS_WITHIN
    assert within["mps"] > 3  # so that none is shown
    assert statistics.median(kinds["cuda, short steps"]) < 1.5


@pytest.mark.parametrize(
    ("precision", "tflops"),
    [("fp32", 8.1), ("fp16", 65), ("tf32", 8.1)],  # T4 has no TF32
)
def test_a_long_step_takes_its_arithmetic_and_its_memory(
    make_experiment: MakeExperiment, precision: str, tflops: float
) -> None:
    step = STEP.model_copy(update={"flops": 10**12, "saved_tensor_bytes": 10**9})
    found = estimate_step(step, accelerators()["T4"], make_experiment(precision=precision))
    assert found
    factor = TIMES_THE_ARITHMETIC["fp16" if precision == "fp16" else "fp32"]
    assert found.seconds == pytest.approx(factor / tflops + TIMES_WHAT_IS_SAVED / 320)
    assert found.spread[2] == pytest.approx(LONG_STEPS_WITHIN * found.seconds)


def test_a_step_in_double_precision_takes_that_rate_or_has_no_estimate(
    make_experiment: MakeExperiment,
) -> None:
    step = STEP.model_copy(update={"flops": 10**12, "in_double": True})
    found = estimate_step(step, accelerators()["L4"], make_experiment())
    assert found
    assert found.seconds > 1 / 0.6
    assert found.spread[2] == pytest.approx(OTHERS_WITHIN * found.seconds)
    assert estimate_step(step, accelerators()["T4"], make_experiment()) is None
    assert accelerators()["T4"].best_tflops("fp64") == 8.1  # a bound that no rate exceeds


@pytest.mark.parametrize(
    ("settings", "is_captured"),
    [
        ({}, True),
        ({"cuda_graphs": "off"}, False),
        ({"deterministic": False}, False),
        ({"deterministic": False, "cuda_graphs": "on"}, True),
        ({"model": {"name": "linear", "compile": True}}, False),
        ({"input": {"name": "loader", "collate": {"name": "./my.py:pad"}}}, False),
        ({"schedule": {"name": "one_cycle", "max_lr": 0.1, "cycle_momentum": True}}, False),
    ],
)
def test_a_small_step_takes_as_long_as_its_launches(
    make_experiment: MakeExperiment, settings: dict[str, object], *, is_captured: bool
) -> None:
    found = estimate_step(SMALL, accelerators()["H100"], make_experiment(**settings))
    assert found
    usual = CAPTURED_LAUNCH_SECONDS
    captured = usual / OTHERS_WITHIN, usual, usual * OTHERS_WITHIN
    launches = captured if is_captured else LAUNCH_SECONDS
    assert found.spread == pytest.approx([SMALL.kernels * seconds for seconds in launches])
    assert found.is_launch_bound is not is_captured


def test_launching_takes_no_longer_than_computing_did(make_experiment: MakeExperiment) -> None:
    eager = make_experiment(cuda_graphs="off")
    found = estimate_step(SMALL, accelerators()["H100"], eager, cpu_step_seconds=0.0089)
    assert found
    assert found.seconds == found.launch_seconds == 0.0089
    fastest = SMALL.kernels * LAUNCH_SECONDS[0]
    assert found.spread == pytest.approx((min(fastest, 0.0089 / 2), 0.0089, 2 * 0.0089))


def test_kinds_that_the_speeds_do_not_fit_have_no_estimate(make_experiment: MakeExperiment) -> None:
    for name in ("M1", "Arc-A770"):
        assert estimate_step(STEP, accelerators()[name], make_experiment()) is None
    assert estimate_step(STEP, accelerators()["MI300X"], make_experiment())
