"""Least step times by data sheets: calculated by hand, and never beaten by a published speed."""

from __future__ import annotations

import statistics
import sys
from dataclasses import replace

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT))  # the benchmarks are beside the package, not in it

from benchmarks.published import held_by, published
from photofinish.comparing.bounds import ABOVE_BOOST_CLOCK, LEAST_KERNEL_SECONDS, least_steps
from photofinish.comparing.memory import least_memory_bytes
from photofinish.config.compare import SHORT_LIST, Accelerator, accelerators, list_prices
from photofinish.results.measurements import Operations, Product

MIB = 2**20
MADE_UP = Accelerator("X", "Made-up X", "cuda", 16, 100.0, {"fp32": 10.0, "fp16": 80.0}, 4, 10.0)
LONG = Product(count=2, least_flops=10**11, read_values=5 * MIB, written_values=MIB // 2)
"""2 x 8 ms of arithmetic, and 2 x 0.17 ms of memory: of 20 MiB and of 2 MiB, what is above 4 MiB"""
WIDE = Product(count=1, least_flops=10**9, read_values=50 * MIB, written_values=26 * MIB)
"""0.08 ms of arithmetic, 3.1 ms of memory: 196 and 100 MiB"""
STEP = Operations(
    images=100,
    flops=10**12,
    kernels=100,
    products=(LONG, WIDE),
    parameter_bytes=10 * MIB,
    gradient_bytes=10 * MIB,
    optimizer_bytes=10 * MIB,
    saved_activations=5 * MIB,
    saved_tensor_bytes=30 * MIB,
    batch_bytes=10**6,
    resident_bytes=0,
)
OPTIMIZER = (30 - 4 + 20 - 4) * MIB / 100e9
"""Time of a step that reads gradients, weights and state, and writes the last two."""


def test_arithmetic_takes_the_fewest_operations_above_the_peak_rate() -> None:
    for precision, tflops in (("fp32", 10), ("fp16", 80)):
        seconds = least_steps(STEP, MADE_UP, precision).arithmetic_seconds
        assert seconds == pytest.approx(0.201 / tflops / ABOVE_BOOST_CLOCK)


def test_memory_takes_what_exceeds_the_cache() -> None:
    floor = least_steps(STEP, MADE_UP, "fp32")
    assert floor.memory_seconds == pytest.approx((2 * 16 + 196 + 100) * MIB / 100e9 + OPTIMIZER)
    short = least_steps(STEP, MADE_UP, "bf16")
    assert short.memory_seconds == pytest.approx((2 * 6 + 96 + 48) * MIB / 100e9 + OPTIMIZER)
    assert least_steps(STEP, replace(MADE_UP, cache_mib=200), "fp32").memory_seconds == 0


def test_products_run_in_sequence() -> None:
    floor = least_steps(STEP, MADE_UP, "fp32")
    assert floor.computing_seconds == pytest.approx(2 * 0.008 + 296 * MIB / 100e9 + OPTIMIZER)
    assert floor.computing_seconds > max(floor.arithmetic_seconds, floor.memory_seconds)
    assert floor.seconds == floor.computing_seconds


def test_an_unknown_rate_is_that_of_the_next_shorter_type() -> None:
    assert MADE_UP.best_tflops("bf16") == 80.0
    assert replace(MADE_UP, tflops={"fp32": 10.0}).best_tflops("bf16") is None
    assert least_steps(STEP, replace(MADE_UP, tflops={}), "fp32").arithmetic_seconds == 0.0


def test_batches_cross_the_link_unless_the_memory_is_shared() -> None:
    assert least_steps(STEP, MADE_UP, "fp32").link_seconds == pytest.approx(1e6 / 10e9)
    assert least_steps(STEP, replace(MADE_UP, link_gb_per_s=None), "fp32").link_seconds == 0.0


def test_a_kernel_takes_at_least_half_a_microsecond() -> None:
    small = Product(count=7, least_flops=10, read_values=10, written_values=10)
    nothing_else = dict.fromkeys(("optimizer_bytes", "gradient_bytes", "batch_bytes"), 0)
    step = STEP.model_copy(update={"products": (small,), **nothing_else})
    floor = least_steps(step, MADE_UP, "fp32")
    assert floor.computing_seconds == floor.kernel_seconds == 7 * LEAST_KERNEL_SECONDS
    assert held_by(floor) == "kernels"


def test_the_longest_part_is_named() -> None:
    assert held_by(least_steps(STEP, MADE_UP, "fp32")) == "arithmetic"
    assert held_by(least_steps(STEP, replace(MADE_UP, memory_gb_per_s=1.0), "fp32")) == "memory"
    link = least_steps(STEP, replace(MADE_UP, link_gb_per_s=1e-3), "fp32")
    assert held_by(link) == "the link"
    assert link.seconds == link.link_seconds == pytest.approx(1.0)


def test_an_epoch_moves_data_for_its_whole_steps_and_computes_for_all_samples() -> None:
    step, epoch = least_steps(STEP, MADE_UP, "fp32"), least_steps(STEP, MADE_UP, "fp32", 250)
    assert epoch.computing_seconds == pytest.approx(
        2 * step.computing_seconds + 0.5 * step.arithmetic_seconds
    )
    assert epoch.arithmetic_seconds == pytest.approx(2.5 * step.arithmetic_seconds)
    assert epoch.memory_seconds == pytest.approx(2 * step.memory_seconds)
    assert epoch.link_seconds == pytest.approx(2.5 * step.link_seconds)


def test_a_step_holds_weights_and_the_larger_of_activations_and_gradients() -> None:
    assert least_memory_bytes(STEP, "fp32") == (10 + 10 + 20) * MIB + 10**6
    assert least_memory_bytes(STEP, "fp16") == (10 + 10 + 10) * MIB + 10**6


def test_no_published_speed_beats_the_bound_from_which_they_have_the_documented_distance() -> None:
    """The figures are those of docs/verdict.md."""
    shares = [each.floor.seconds / each.step_seconds for each in published()]
    assert len(shares) == 154
    assert round(statistics.median(shares), 2) == 0.13
    assert round(max(shares), 2) == 0.47


def test_each_accelerator_has_the_figures_of_a_bound() -> None:
    assert set(SHORT_LIST) <= {price.accelerator for price in list_prices()} <= set(accelerators())
    for each in accelerators().values():
        assert each.best_tflops("fp32")
        assert each.memory_gib
        rates = map(each.best_tflops, ("fp64", "fp32", "tf32", "bf16", "fp16"))
        known = [rate for rate in rates if rate]
        assert known == sorted(known)
    assert all(price.usd_per_hour > 0 and price.gpus >= 1 for price in list_prices())
