"""Cost of a training, and the table of when a GPU pays, calculated by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from conftest import MakeResult
from result_files import as_result, changed_history, pair_of, trained, with_timings

from photofinish.answer.result import Trained
from photofinish.answer.spending import TimeToTarget, cost, resource_use
from photofinish.config.compare import Comparing, Prices
from photofinish.reporting.comparison_rows import comparison_rows
from photofinish.reporting.tables import figures_table
from photofinish.results.records import DeviceLabel

PRICED = Comparing(target_accuracy=0.9, prices=Prices(currency="EUR", cpu_hour=0.36, gpu_hour=3.6))


def timed(make_result: MakeResult, device: DeviceLabel = "gpu") -> Trained:
    """Make a job of 36 s with three epochs of 10 s, the first of which reaches 90 %."""
    result = trained(make_result, device=device, epoch_seconds=(9.9,) * 3, total_seconds=36.0)
    history = changed_history(result, validation_accuracy=[0.9, 0.95, 0.99])
    timings = result.timings.model_copy(update={"startup_seconds": 5.0})
    return replace(result, timings=timings, history=history)


@pytest.mark.parametrize(
    ("prices", "amount"),
    [(Prices(cpu_hour=0.36), 0.0036), (Prices(gpu_hour=3.6), None), (Prices(cpu_hour=0.0), 0.0)],
)
def test_only_what_has_a_price_costs(prices: Prices, amount: float | None) -> None:
    assert cost("cpu", 36.0, Comparing(prices=prices)) == pytest.approx(amount)


def test_a_target_that_is_not_reached_leaves_the_cost_of_the_training(
    make_result: MakeResult,
) -> None:
    result = timed(make_result)
    settings = PRICED.model_copy(update={"target_accuracy": 0.995})
    found = resource_use(as_result(result), settings)
    assert found.target == TimeToTarget(0.995, None, None)
    assert found.cost_to_target is None
    assert found.cost == pytest.approx(36 / 3600 * 3.6)
    pair = pair_of(timed(make_result, device="cpu"), result, settings)
    figures = {row[""]: row["GPU"] for row in figures_table(pair)}
    assert figures["target accuracy"] == "0.995"
    assert "time to the target" not in figures
    further = {"seeds": (result.timings.epochs,) * 4, "repeats": (result.timings.epochs[:2],)}
    found = resource_use(as_result(with_timings(result, **further)), settings)
    assert found.cost == pytest.approx((36 + 4 * 30 + 20) / 3600 * 3.6)


def test_the_table_has_costs_also_to_the_target_and_nothing_where_they_are_unknown(
    make_result: MakeResult,
) -> None:
    pair = pair_of(timed(make_result, device="cpu"), timed(make_result), PRICED)
    cpu, gpu = comparison_rows([pair])
    assert gpu["cost_currency"] == "EUR"
    assert gpu["cost"] == pytest.approx(36 / 3600 * 3.6)
    assert cpu["cost"] == pytest.approx(36 / 3600 * 0.36)
    # One of three epochs, after 5 s of start-up.
    assert (gpu["target_epoch"], gpu["target_seconds"]) == (1, pytest.approx(15.0))
    assert gpu["target_cost"] == pytest.approx(15 / 3600 * 3.6)
    table = {row[""]: [row["CPU"], row["GPU"]] for row in figures_table(pair)}
    expected = {
        "cost of the run": ["0.0036", "0.036"],
        "currency of the cost": ["EUR", "EUR"],
        "target accuracy": ["0.9", "0.9"],
        "time to the target": ["15 s", "15 s"],
        "cost to the target": ["0.0015", "0.015"],
    }
    assert {figure: table[figure] for figure in expected} == expected
    for row in comparison_rows([pair_of(pair.cpu, pair.gpu)]):
        columns = ("cost", "target_accuracy", "target_seconds", "target_cost")
        assert {row[column] for column in columns} == {None}
