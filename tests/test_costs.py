"""Energy and cost of a training, against examples calculated by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from conftest import MakeResult
from result_files import changed_history, pair_of, trained

from photofinish.comparing.device_results import Trained
from photofinish.comparing.speedups import TimeToTarget, cost, energy_used, resource_use
from photofinish.config.compare import Comparing, Prices, Watts
from photofinish.machine.energy import Energy
from photofinish.reporting.comparison_rows import comparison_rows
from photofinish.results.records import DeviceLabel

GPU = Energy(of="gpu", status="measured", joules=900.0, source="nvml")
NO_GPU = Energy(of="gpu", status="unavailable", reason="Not Supported")
NO_PRICE = "no price of an hour (compare.prices.cpu_hour)"
PRICED = Comparing(
    target_accuracy=0.9,
    prices=Prices(currency="EUR", cpu_hour=0.36, gpu_hour=3.6, kilowatt_hour=0.36),
)


def metered(make_result: MakeResult, *energy: Energy, device: DeviceLabel = "gpu") -> Trained:
    """Make a job of 36 s with three epochs of 10 s, the first of which reaches 90 %."""
    result = trained(make_result, device=device, epoch_seconds=(9.9,) * 3, total_seconds=36.0)
    history = changed_history(result, validation_accuracy=[0.9, 0.95, 0.99])
    timings = result.timings.model_copy(update={"energy": energy, "startup_seconds": 5.0})
    return replace(result, timings=timings, history=history)


@pytest.mark.parametrize(
    ("device", "meters", "watts", "joules", "status", "counted"),
    [
        ("gpu", (GPU,), Watts(gpu=300.0), 900.0, "measured", "the GPU (NVML)"),
        ("gpu", (NO_GPU,), Watts(gpu=65.0), 1950.0, "estimated", "65 W (compare.watts.gpu) times"),
        ("gpu", (NO_GPU,), Watts(cpu=65.0), None, "unavailable", "Not Supported; compare.watts.g"),
        ("gpu", (), Watts(), None, "unavailable", "not recorded; compare.watts.gpu"),
        ("cpu", (), Watts(cpu=65.0), 1950.0, "estimated", "65 W (compare.watts.cpu) times"),
        ("cpu", (), Watts(), None, "unavailable", "a CPU's energy is not measured; compare.watts"),
    ],
)
def test_energy_is_measured_estimated_or_unavailable(
    make_result: MakeResult,
    device: DeviceLabel,
    meters: tuple[Energy, ...],
    watts: Watts,
    joules: float | None,
    status: str,
    counted: str,
) -> None:
    timings = metered(make_result, *meters, device=device).timings
    found = energy_used(device, timings, Comparing(watts=watts))
    assert (found.joules, found.status) == (pytest.approx(joules), status)
    assert found.counted.startswith(counted)


@pytest.mark.parametrize(
    ("prices", "joules", "amount", "counted"),
    [  # 36 s, and 1 MJ of 3.6 MJ a kilowatt hour
        (Prices(cpu_hour=0.36), 1e6, 0.0036, "time"),
        (Prices(cpu_hour=0.36, kilowatt_hour=0.36), 1e6, 0.1036, "time and energy"),
        (Prices(gpu_hour=3.6), 1e6, None, NO_PRICE),
        (Prices(cpu_hour=0.0), 1e6, 0.0, "time"),
        (Prices(kilowatt_hour=0.36), 1e6, 0.1, "energy"),
        (Prices(kilowatt_hour=0.36), None, None, f"{NO_PRICE}, its energy being unknown"),
    ],
)
def test_only_what_has_a_price_costs(
    prices: Prices, joules: float | None, amount: float | None, counted: str
) -> None:
    found = cost("cpu", 36.0, joules, Comparing(prices=prices))
    assert (found.amount, found.counted) == (pytest.approx(amount), counted)


def test_a_target_that_is_not_reached_leaves_the_cost_of_the_training(
    make_result: MakeResult,
) -> None:
    result = metered(make_result, GPU)
    settings = PRICED.model_copy(update={"target_accuracy": 0.995})
    found = resource_use("gpu", result.timings, result.history, settings)
    assert found.target == TimeToTarget(0.995, None, None, None, 0.99)
    assert (found.joules_to_target, found.cost_to_target) == (None, None)
    assert found.cost.amount == pytest.approx(36 / 3600 * 3.6 + 900 / 3.6e6 * 0.36)


def test_the_table_has_costs_also_to_the_target_and_nothing_where_they_are_unknown(
    make_result: MakeResult,
) -> None:
    pair = pair_of(metered(make_result, device="cpu"), metered(make_result, GPU), PRICED)
    cpu, gpu = comparison_rows([pair])
    energy = gpu["energy_joules"], gpu["energy_status"], gpu["cost_currency"]
    assert energy == (900.0, "measured", "EUR")
    assert gpu["cost"] == pytest.approx(36 / 3600 * 3.6 + 900 / 3.6e6 * 0.36)
    assert cpu["cost"] == pytest.approx(36 / 3600 * 0.36)
    # One of three epochs, after 5 s of start-up: a third of the energy, 15 s of the machine.
    assert (gpu["target_epoch"], gpu["target_seconds"]) == (1, pytest.approx(15.0))
    assert gpu["target_cost"] == pytest.approx(15 / 3600 * 3.6 + 300 / 3.6e6 * 0.36)
    assert cpu["energy_status"] == "unavailable"
    for row in comparison_rows([pair_of(pair.cpu, pair.gpu)]):
        columns = ("cost", "target_accuracy", "target_seconds", "target_cost")
        assert {row[column] for column in columns} == {None}
