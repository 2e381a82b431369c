"""Energy and cost of a training: what is counted, what is only estimated, and what is not known. Worked by hand."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest
from conftest import MakeResult
from result_files import changed_history, pair_of, trained

from photofinish.comparing.device_results import Trained
from photofinish.comparing.speedups import TimeToTarget, cost, energy_used, outlay
from photofinish.config.compare import Comparing, Prices, Watts
from photofinish.machine.energy import Energy
from photofinish.report.rows import comparison_rows
from photofinish.results.records import DeviceLabel

GPU = Energy(of="gpu", status="measured", joules=900.0, source="nvml")
CPU = Energy(of="cpu", status="measured", joules=600.0, source="rapl")
NO_CPU = Energy(of="cpu", status="unavailable", reason="root alone may read it")
NO_PRICE = "no price of an hour (compare.prices.cpu_hour)"
PRICED = Comparing(target_accuracy=0.9, prices=Prices(currency="EUR", cpu_hour=0.36, gpu_hour=3.6, kilowatt_hour=0.36))


def metered(make_result: MakeResult, *energy: Energy, device: str = "gpu") -> Trained:
    """36 s in all, of which 3 epochs take 10 s each, the first of them to 90 %."""
    result = trained(make_result, device=device, epoch_seconds=(9.9,) * 3, total_seconds=36.0)
    history = changed_history(result, validation_accuracy=[0.9, 0.95, 0.99])
    timings = result.timings.model_copy(update={"energy": energy, "startup_seconds": 5.0})
    return replace(result, timings=timings, history=history)


def test_each_device_counts_its_own_energy(make_result: MakeResult) -> None:
    found = energy_used("gpu", metered(make_result, GPU, CPU).timings, Comparing(watts=Watts(gpu=300.0)))
    assert (found.joules, found.status, found.counted) == (900.0, "measured", "the GPU (NVML)")


def test_what_cannot_be_measured_is_estimated_by_the_power_given(make_result: MakeResult) -> None:
    """65 W for three epochs of 10 s."""
    found = energy_used("cpu", metered(make_result, NO_CPU, device="cpu").timings, Comparing(watts=Watts(cpu=65.0)))
    assert (found.joules, found.status) == (pytest.approx(1950.0), "estimated")
    assert found.counted == "65 W (compare.watts.cpu) times the epochs' time"


def test_a_cpus_own_power_says_nothing_of_a_gpu(make_result: MakeResult) -> None:
    no_gpu = Energy(of="gpu", status="unavailable", reason="Not Supported")
    found = energy_used("gpu", metered(make_result, no_gpu, CPU).timings, Comparing(watts=Watts(cpu=65.0)))
    assert (found.joules, found.status) == (None, "unavailable")
    assert found.counted == "Not Supported; compare.watts.gpu would give an estimate"


def test_a_cost_is_time_and_energy_at_their_prices() -> None:
    """By hand: 36 s at 3.60 an hour are 0.036; 1 MJ at 0.36 for 3.6 MJ is 0.1."""
    found = cost("gpu", 36.0, 1e6, PRICED)
    assert found.amount == pytest.approx(0.136)
    assert found.counted == "time and energy"


@pytest.mark.parametrize(
    ("prices", "joules", "amount", "counted"),
    [
        (Prices(), 1e6, None, NO_PRICE),
        (Prices(cpu_hour=0.36), 1e6, 0.0036, "time"),
        (Prices(gpu_hour=3.6), 1e6, None, NO_PRICE),
        (Prices(cpu_hour=0.0), 1e6, 0.0, "time"),
        (Prices(kilowatt_hour=0.36), 1e6, 0.1, "energy"),
        (Prices(kilowatt_hour=0.36), None, None, f"{NO_PRICE}, its energy being unknown"),
        (Prices(cpu_hour=0.36, kilowatt_hour=0.36), None, 0.0036, "time, its energy being unknown"),
    ],
)
def test_nothing_is_priced_that_has_no_price(
    prices: Prices, joules: float | None, amount: float | None, counted: str
) -> None:
    found = cost("cpu", 36.0, joules, Comparing(prices=prices))
    assert (found.amount, found.counted) == (pytest.approx(amount), counted)


def test_up_to_the_target_the_energy_goes_by_the_epochs_time(make_result: MakeResult) -> None:
    """One of three epochs, after 5 s of start-up: a third of the energy, 15 s of the machine."""
    result = metered(make_result, GPU, CPU)
    found = outlay("gpu", result.timings, result.history, PRICED)
    assert found.target is not None
    assert found.target.seconds == pytest.approx(15.0)
    assert found.joules_to_target == pytest.approx(300.0)
    assert found.cost_to_target is not None
    assert found.cost_to_target.amount == pytest.approx(15 / 3600 * 3.6 + 300 / 3.6e6 * 0.36)


def test_the_table_holds_the_same_and_leaves_empty_what_is_not_known(make_result: MakeResult) -> None:
    results = metered(make_result, NO_CPU, device="cpu"), metered(make_result, GPU, CPU)
    cpu, gpu = pd.DataFrame(comparison_rows([pair_of(*results, PRICED)])).to_dict("records")
    assert (gpu["energy_joules"], gpu["energy_status"], gpu["cost_currency"]) == (900.0, "measured", "EUR")
    assert gpu["cost"] == pytest.approx(36 / 3600 * 3.6 + 900 / 3.6e6 * 0.36)
    assert (gpu["target_epoch"], gpu["target_seconds"]) == (1, pytest.approx(15.0))
    assert (cpu["energy_status"], cpu["cost_counted"]) == ("unavailable", "time, its energy being unknown")
    unpriced = pd.DataFrame(comparison_rows([pair_of(*results)]))
    assert unpriced[["cost", "target_accuracy", "target_seconds", "target_cost"]].isna().all(axis=None)


def test_a_target_that_is_not_reached_leaves_the_whole_training_with_its_cost(make_result: MakeResult) -> None:
    result = metered(make_result, GPU, CPU)
    settings = PRICED.model_copy(update={"target_accuracy": 0.995})
    found = outlay("gpu", result.timings, result.history, settings)
    assert (found.target, found.joules_to_target, found.cost_to_target) == (
        TimeToTarget(0.995, None, None, None, 0.99),
        None,
        None,
    )
    assert (found.energy.joules, found.currency) == (900.0, "EUR")
    assert found.cost.amount == pytest.approx(36 / 3600 * 3.6 + 900 / 3.6e6 * 0.36)


@pytest.mark.parametrize(("device", "hour_price"), [("cpu", 0.36), ("gpu", 3.6)])
def test_each_device_is_priced_by_its_own_hour(make_result: MakeResult, device: DeviceLabel, hour_price: float) -> None:
    result = metered(make_result, CPU, device=device)
    settings = Comparing(target_accuracy=0.9, prices=Prices(currency="EUR", cpu_hour=0.36, gpu_hour=3.6))
    found = outlay(device, result.timings, result.history, settings)
    assert found.cost.amount == pytest.approx(36 / 3600 * hour_price)
    assert found.cost_to_target is not None
    assert found.cost_to_target.amount == pytest.approx(15 / 3600 * hour_price)
    assert found.target is not None
    assert (found.target.target, found.target.best) == (0.9, 0.99)


def test_without_a_target_the_currency_is_told_and_energy_that_no_record_has_is_not_recorded(
    make_result: MakeResult,
) -> None:
    result = metered(make_result)
    found = outlay("gpu", result.timings, result.history, PRICED.model_copy(update={"target_accuracy": None}))
    assert (found.target, found.currency, found.energy.joules) == (None, "EUR", None)
    assert found.energy.counted == "not recorded; compare.watts.gpu would give an estimate"
