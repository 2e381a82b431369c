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
from benchmarks.published.fit import errors, fitted, kind
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


def test_constants_and_errors_are_those_of_published_speeds() -> None:
    """Each accelerator is estimated by constants that were fitted without it."""
    speeds = [each for each in published() if each.accelerator.kind != "cpu"]
    weights, launch_seconds = fitted(speeds)
    constants = [*TIMES_THE_ARITHMETIC.values(), TIMES_WHAT_IS_SAVED]
    assert weights == pytest.approx(constants, rel=0.01)
    assert launch_seconds == pytest.approx(LAUNCH_SECONDS, rel=0.01)
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
    assert found.within == LONG_STEPS_WITHIN


def test_a_step_in_double_precision_takes_that_rate_or_has_no_estimate(
    make_experiment: MakeExperiment,
) -> None:
    step = STEP.model_copy(update={"flops": 10**12, "in_double": True})
    found = estimate_step(step, accelerators()["L4"], make_experiment())
    assert found
    assert found.seconds > 1 / 0.6
    assert found.within == OTHERS_WITHIN
    assert estimate_step(step, accelerators()["T4"], make_experiment()) is None
    assert accelerators()["T4"].best_tflops("fp64") == 8.1  # a bound that no rate exceeds


@pytest.mark.parametrize(
    ("settings", "launch_seconds"),
    [
        ({}, CAPTURED_LAUNCH_SECONDS),
        ({"cuda_graphs": "off"}, LAUNCH_SECONDS),
        ({"deterministic": False}, LAUNCH_SECONDS),
        ({"deterministic": False, "cuda_graphs": "on"}, CAPTURED_LAUNCH_SECONDS),
        ({"model": {"name": "linear", "compile": True}}, LAUNCH_SECONDS),
        ({"input": {"name": "loader", "collate": {"name": "./my.py:pad"}}}, LAUNCH_SECONDS),
        (
            {"schedule": {"name": "one_cycle", "max_lr": 0.1, "cycle_momentum": True}},
            LAUNCH_SECONDS,
        ),
    ],
)
def test_a_small_step_takes_as_long_as_its_launches(
    make_experiment: MakeExperiment, settings: dict[str, object], launch_seconds: float
) -> None:
    step = STEP.model_copy(update={"flops": 10**6, "saved_tensor_bytes": 10**3, "kernels": 200})
    found = estimate_step(step, accelerators()["H100"], make_experiment(**settings))
    assert found
    assert found.seconds == pytest.approx(200 * launch_seconds)
    assert found.within == OTHERS_WITHIN


def test_launching_takes_no_longer_than_computing_did(make_experiment: MakeExperiment) -> None:
    step = STEP.model_copy(update={"flops": 10**6, "saved_tensor_bytes": 10**3, "kernels": 478})
    eager = make_experiment(cuda_graphs="off")
    found = estimate_step(step, accelerators()["H100"], eager, cpu_step_seconds=0.0089)
    assert found
    assert found.seconds == found.launch_seconds == 0.0089


def test_kinds_that_the_speeds_do_not_fit_have_no_estimate(make_experiment: MakeExperiment) -> None:
    for name in ("M1", "Arc-A770"):
        assert estimate_step(STEP, accelerators()[name], make_experiment()) is None
    assert estimate_step(STEP, accelerators()["MI300X"], make_experiment())
