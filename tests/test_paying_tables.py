"""The report's table of when a GPU pays: each question with both devices' figures, and what to say of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from conftest import MakeResult
from result_files import paired, trained

from photofinish.comparing.device_results import DeviceResult
from photofinish.comparing.scaling import all_series
from photofinish.machine.energy import Energy
from photofinish.params.compare import Comparing, Prices
from photofinish.report.tables import paying_table

FIVE = (1.9,) * 5
PRICED = Comparing(target_accuracy=0.5, prices=Prices(cpu_hour=0.36, gpu_hour=3.6))
ONE_SIZE = "one size only: no other experiment differs in its batch size or a width alone"


@pytest.fixture
def pair(make_result: MakeResult) -> list[DeviceResult]:
    """On the GPU an epoch takes a second less, validation included, and the start-up 4.5 s more."""
    gpu = trained(make_result, device="gpu", epoch_seconds=(0.9,) * 5, total_seconds=20.0)
    energy = Energy(of="gpu", status="measured", joules=500.0, source="nvml")
    return [
        make_result(epoch_seconds=FIVE),
        replace(gpu, timings=gpu.timings.model_copy(update={"startup_seconds": 7.0, "energy": (energy,)})),
    ]


def rows(results: list[DeviceResult], settings: Comparing) -> list[list[str]]:
    pairs = paired(results, settings)
    return [list(row.values()) for row in paying_table(pairs, all_series(pairs))]


def test_every_question_has_a_row(pair: list[DeviceResult]) -> None:
    nothing = "unavailable: not recorded; compare.watts.cpu would give an estimate"
    assert [row[1:] for row in rows(pair, PRICED)] == [
        ["start-up repaid", "2.50 s", "7.00 s", "after 5 epochs"],
        ["energy of the epochs", "n/a", "500 J", f"CPU: {nothing}; GPU: measured: the GPU (NVML)"],
        ["cost of the run", "0.003 USD", "0.02 USD", "time"],
        ["time to 0.5 validation accuracy", "4.50 s", "8.00 s", "in epoch 1, start-up included"],
        ["energy to 0.5 validation accuracy", "n/a", "100 J", "by the epochs' time"],
        ["cost to 0.5 validation accuracy", "0.00045 USD", "0.008 USD", "as for the run"],
        ["break-even size", "n/a", "n/a", ONE_SIZE],
    ]


def test_a_target_that_is_not_reached_is_told_with_the_best(pair: list[DeviceResult]) -> None:
    table = {row[1]: row[2:] for row in rows(pair, Comparing(target_accuracy=0.99))}
    assert table["time to 0.99 validation accuracy"] == ["n/a", "n/a", "not reached; 0.5 is the best"]
    assert "energy to 0.99 validation accuracy" not in table


def test_sizes_have_their_break_even(make_result: MakeResult) -> None:
    results: list[DeviceResult] = []
    for size, cpu_seconds in ((16, 1.0), (64, 4.0)):
        for device, seconds in (("cpu", cpu_seconds), ("gpu", 2.0)):
            result = make_result(f"mlp-{size}", device, epoch_seconds=(seconds,) * 5)
            experiment = result.record.experiment.model_copy(update={"batch_size": size})
            results.append(replace(result, record=result.record.model_copy(update={"experiment": experiment})))
    table = rows(results, Comparing())
    told = "the GPU is the faster one from 32 on (95 % interval 30.5 to 33.6)"
    assert ["mlp", "break-even batch size", "n/a", "n/a", told] in table
    assert not [row for row in table if row[1] == "break-even size"]


def test_what_is_known_of_no_experiment_is_told_once(make_result: MakeResult) -> None:
    results = [make_result(name, "cpu") for name in ("one", "two")]
    results += [make_result(name, "gpu", unavailable="no driver") for name in ("one", "two")]
    assert rows(results, Comparing()) == [
        ["all experiments", "energy of the epochs", "n/a", "n/a",
         "unavailable: not recorded; compare.watts.cpu would give an estimate"],
        ["all experiments", "cost of the run", "n/a", "n/a", "no price of an hour (compare.prices.cpu_hour)"],
    ]  # fmt: skip
