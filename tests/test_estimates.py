"""Estimates and bounds of a step on an accelerator, by hand and beside published speeds."""

from __future__ import annotations

import statistics
import sys
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ROOT
from result_files import STEP

sys.path.insert(0, str(ROOT))  # the benchmarks are beside the package, not in it

from benchmarks import data
from benchmarks.probe.trainers import LINEAR, SGD, trainer
from benchmarks.published import measured, published
from benchmarks.published.fit import errors, estimates_of, fitted, kind, launches
from benchmarks.published.memory import chosen_factor, ratios
from photofinish.answer.estimates import (
    CAPTURED_KERNEL_SECONDS,
    CONVOLUTION_SECONDS,
    LAUNCH_SECONDS,
    LONG_STEPS_WITHIN,
    OTHER_CPU,
    OTHERS_WITHIN,
    RESERVED_FACTOR,
    RESERVED_WITHIN,
    TIME_STEP_SECONDS,
    TIMES_WHAT_IS_SAVED,
    estimate_step,
    with_batch,
)
from photofinish.config.compare import SHORT_LIST, accelerators, list_prices
from photofinish.config.precisions import PRECISIONS
from photofinish.measure.operations import count_operations

LENET, MLP = {"name": "lenet", "init": "default"}, LINEAR | {"name": "mlp", "hidden": (32,)}
ADAM = {
    "name": "adam", "lr": 0.001, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0,
}  # fmt: skip
SMALL = STEP.model_copy(update={"flops": 10**6, "saved_tensor_bytes": 10**3, "kernels": 478})


def test_constants_and_errors_are_those_of_published_speeds() -> None:
    """Each accelerator is estimated by constants that were fitted without it."""
    speeds = published()
    weights, launch_seconds = fitted(speeds)
    arithmetic = [PRECISIONS[name].times_the_arithmetic for name in ("fp32", "tf32", "fp16")]
    constants = [*arithmetic, TIMES_WHAT_IS_SAVED]
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


def test_nine_of_ten_steps_on_an_h100_are_within_their_estimates() -> None:
    """One is not: LeNet's weight gradients take a deterministic kernel of few threads."""
    kinds = defaultdict(list)
    for step, estimate in estimates_of(measured()):
        low, middle, high = estimate.spread
        kinds["inside"].append(low <= step.seconds <= high)
        if step.is_captured:
            kinds["captured"].append(max(step.seconds / middle, middle / step.seconds))
    assert np.mean(kinds["inside"]) > 0.9
    assert statistics.median(kinds["captured"]) < 1.5
    assert np.quantile(kinds["captured"], 0.9) < OTHERS_WITHIN


def test_steps_of_networks_on_which_nothing_was_fitted_are_within_their_estimates() -> None:
    inside = [
        estimate.spread[0] <= step.seconds <= estimate.spread[2]
        for step, estimate in estimates_of(measured("unseen"))
    ]
    assert np.mean(inside) > 0.9


@pytest.mark.parametrize(
    ("precision", "tflops"),
    [("fp32", 8.1), ("fp16", 65), ("tf32", 8.1)],  # T4 has no TF32
)
def test_a_long_step_takes_its_arithmetic_and_its_memory(precision: str, tflops: float) -> None:
    step = STEP.model_copy(update={"flops": 10**12, "saved_tensor_bytes": 10**9})
    found = estimate_step(step, accelerators()["T4"], precision)
    factor = PRECISIONS["fp16" if precision == "fp16" else "fp32"].times_the_arithmetic
    assert found.seconds == pytest.approx(factor / tflops + TIMES_WHAT_IS_SAVED / 320)
    assert found.spread[2] == pytest.approx(LONG_STEPS_WITHIN * found.seconds)


def test_a_step_in_double_precision_takes_that_rate_or_has_no_estimate() -> None:
    step = STEP.model_copy(update={"flops": 10**12, "in_double": True})
    found = estimate_step(step, accelerators()["L4"], "fp32")
    assert found.seconds > 1 / 0.6
    assert found.spread[2] == pytest.approx(OTHERS_WITHIN * found.seconds)
    assert estimate_step(step, accelerators()["T4"], "fp32") is None


@pytest.mark.parametrize("is_captured", [True, False])
def test_a_small_step_takes_as_long_as_its_launches(*, is_captured: bool) -> None:
    found = estimate_step(SMALL, accelerators()["H100"], "fp32", is_captured=is_captured)
    usual = CAPTURED_KERNEL_SECONDS
    captured = usual / OTHERS_WITHIN, usual, usual * OTHERS_WITHIN
    launches = captured if is_captured else LAUNCH_SECONDS
    each = [SMALL.kernels * seconds for seconds in launches]
    assert found.spread == pytest.approx(each, rel=0.01)
    assert found.is_launch_bound is not is_captured
    newest = estimate_step(SMALL, accelerators()["RTX-5090"], "fp32", is_captured=is_captured)
    is_faster = not is_captured  # in a newer machine
    assert newest.spread[0] == pytest.approx(found.spread[0] / (2.24 if is_faster else 1), rel=0.01)


def test_time_steps_take_their_time_in_sequence_and_fp32_convolutions_take_longer() -> None:
    def times(precision: str = "fp32", **counts: int) -> np.ndarray:
        step = SMALL.model_copy(update=counts)
        found = estimate_step(step, accelerators()["H100"], precision, is_captured=True)
        return np.array(found.spread)

    assert times(time_steps=1000) - times() == pytest.approx([1000 * s for s in TIME_STEP_SECONDS])
    assert (times(convolutions=10) - times())[1] == pytest.approx(10 * CONVOLUTION_SECONDS)
    assert list(times("tf32", convolutions=10)) == list(times("tf32"))


def test_launching_takes_no_longer_than_computing_did() -> None:
    found = estimate_step(SMALL, accelerators()["H100"], "fp32", cpu_step_seconds=0.0089)
    assert found.seconds == found.launches[1] == 0.0089
    fastest = SMALL.kernels * LAUNCH_SECONDS[0]
    assert found.spread == pytest.approx(
        (min(fastest, 0.0089 / OTHER_CPU), 0.0089, OTHER_CPU * 0.0089)
    )


@pytest.mark.parametrize(
    ("driver_name", "times_as_fast"),
    [
        ("NVIDIA GeForce RTX 2080 Ti", 3.0),
        ("NVIDIA GeForce RTX 3060 Laptop GPU", 2.5),
        ("NVIDIA GeForce RTX 3070", 4.6),
        ("NVIDIA TITAN V", 3.4),
        ("Tesla P100-PCIE-16GB", 2.2),
        ("NVIDIA GeForce GTX 1070", 1.5),
    ],
)
def test_older_gpus_are_known_by_their_drivers_names(
    driver_name: str, times_as_fast: float
) -> None:
    """Steps of arithmetic alone are as fast as data sheets have them, over a GTX 1650 Super."""
    sheets = {each.full_name: each for each in accelerators().values()}
    step = STEP.model_copy(update={"flops": 10**13, "saved_tensor_bytes": 0})
    slow, fast = (
        estimate_step(step, sheets[name], "fp32")
        for name in ("NVIDIA GeForce GTX 1650 SUPER", driver_name)
    )
    assert slow.seconds / fast.seconds == pytest.approx(times_as_fast, rel=0.03)


def test_kinds_that_the_speeds_do_not_fit_have_no_estimate() -> None:
    for name in ("M1", "Arc-A770"):
        assert estimate_step(STEP, accelerators()[name], "fp32") is None
    assert estimate_step(STEP, accelerators()["MI300X"], "fp32")


def test_steps_of_published_networks_take_the_memory_that_was_published() -> None:
    """The factor is that of every second row, and holds for the others."""
    found = ratios()
    assert chosen_factor(found) == pytest.approx(RESERVED_FACTOR, abs=0.005)
    assert len(found) == 9
    assert RESERVED_FACTOR * max(found) < RESERVED_WITHIN
    assert RESERVED_FACTOR * min(found) > 1 / RESERVED_WITHIN


def test_another_batch_takes_memory_in_proportion_beside_weights_and_state() -> None:
    step = STEP.model_copy(update={"fixed_bytes": 10**9, "peak_reserved_bytes": 3 * 10**9})
    assert with_batch(step, 4 * step.images).peak_reserved_bytes == 9 * 10**9
    unknown = step.model_copy(update={"peak_reserved_bytes": None})
    assert with_batch(unknown, 4 * step.images).peak_reserved_bytes is None


def test_each_accelerator_has_the_figures_of_an_estimate() -> None:
    assert set(SHORT_LIST) <= {price.accelerator for price in list_prices()} <= set(accelerators())
    for each in accelerators().values():
        assert each.tflops["fp32"]
        assert each.memory_gib
    assert all(price.usd_per_hour > 0 and price.gpus >= 1 for price in list_prices())


@pytest.mark.parametrize("optimizer", [SGD, ADAM], ids=["sgd", "adam"])
@pytest.mark.parametrize(
    ("job", "model"),
    [
        ("linear on mnist", LINEAR),
        ("mlp on mnist", MLP),
        ("lenet", LENET),
        ("resnet18", {"name": "resnet18"}),
    ],
)
def test_kernels_are_about_those_that_an_h100_ran(
    job: str, model: dict[str, Any], optimizer: dict[str, Any]
) -> None:
    """Its optimizers are fused, and its first step makes no state.

    There `promote_types` counted, which runs no kernel. A step has none of it now.
    """
    images = data.noise((3, 32, 32) if job == "resnet18" else (1, 28, 28), 64, 64)
    of_trainer = trainer(images, torch.device("cpu"), model=model, optimizer=optimizer)
    rows = [each for each in measured() if (each.job, each.precision) == (job, "fp32")]
    there = rows[0].operations.kernels - 1
    assert count_operations(of_trainer).kernels == pytest.approx(there, rel=0.13)
