"""The report's tables of when a GPU pays: by its costs, and by size."""

from __future__ import annotations

from dataclasses import replace

import pytest
from conftest import MakeResult
from result_files import pair_of, paired, trained

from photofinish.comparing.device_results import Trained
from photofinish.comparing.pairs import Comparison
from photofinish.comparing.scaling import all_series
from photofinish.config.compare import Comparing, Prices
from photofinish.config.experiment import EarlyStopping
from photofinish.machine.energy import Energy
from photofinish.reporting.tables import paying_table, series_table

PRICED = Comparing(target_accuracy=0.5, prices=Prices(cpu_hour=0.36, gpu_hour=3.6))


@pytest.fixture
def pair(make_result: MakeResult) -> Comparison:
    """Compare devices: the GPU takes 1 s less for an epoch, and 4.5 s more to start."""
    gpu = trained(make_result, device="gpu", epoch_seconds=(0.9,) * 5, total_seconds=20.0)
    energy = Energy(of="gpu", status="measured", joules=500.0, source="nvml")
    timings = gpu.timings.model_copy(update={"startup_seconds": 7.0, "energy": (energy,)})
    return pair_of(make_result(epoch_seconds=(1.9,) * 5), replace(gpu, timings=timings))


def cells(pair: Comparison, settings: Comparing) -> dict[str, list[str]]:
    rows = paying_table(replace(pair, settings=settings))
    return {row["of"]: [row["CPU"], row["GPU"], row["finding"]] for row in rows}


def test_every_question_has_a_row(pair: Comparison) -> None:
    table = cells(pair, PRICED)
    assert {of: row[:2] for of, row in table.items()} == {
        "start-up repaid": ["2.5 s", "7.0 s"],
        "energy of the epochs": ["n/a", "500 J"],
        "cost of the run": ["under 0.01 USD", "0.02 USD"],
        "time to 0.5 validation accuracy": ["4.5 s", "8.0 s"],
        "energy to 0.5 validation accuracy": ["n/a", "100 J"],
        "cost to 0.5 validation accuracy": ["under 0.01 USD", "under 0.01 USD"],
    }
    assert table["energy of the epochs"][2].startswith("CPU: unavailable: ")
    assert table["energy of the epochs"][2].endswith("; GPU: measured: the GPU (NVML)")


def test_a_target_that_is_not_reached_is_shown_with_the_best(pair: Comparison) -> None:
    table = cells(pair, Comparing(target_accuracy=0.99))
    assert table["time to 0.99 validation accuracy"] == [
        "n/a",
        "n/a",
        "not reached; the best is 0.5",
    ]
    assert "energy to 0.99 validation accuracy" not in table


def test_trainings_that_stop_early_have_the_time_to_their_lowest_loss(pair: Comparison) -> None:
    patient = {"early_stopping": EarlyStopping(patience=2)}
    runs = {}
    for run, best in ((pair.cpu, 1), (pair.gpu, 3)):
        assert isinstance(run, Trained)
        experiment = run.record.experiment.model_copy(update=patient)
        history = [
            replace(epoch, validation_loss=1.0 + abs(number - best))
            for number, epoch in enumerate(run.history, 1)
        ]
        record = run.record.model_copy(update={"experiment": experiment})
        runs[run.device] = replace(run, record=record, history=history)
    stopped = pair_of(runs["cpu"], runs["gpu"], settings=PRICED)
    rows = {row["of"]: row for row in paying_table(stopped)}
    row = rows["time to the lowest validation loss"]
    assert (row["CPU"], row["GPU"]) == ("4.5 s", "10 s")
    assert "CPU: in epoch 1 of 5" in row["finding"]
    assert "GPU: in epoch 3 of 5" in row["finding"]


def test_sizes_have_their_break_even(make_result: MakeResult) -> None:
    results = []
    for size, cpu_seconds in ((16, 1.0), (64, 4.0)):
        for device, seconds in (("cpu", cpu_seconds), ("gpu", 2.0)):
            result = trained(make_result, f"mlp-{size}", device, epoch_seconds=(seconds,) * 5)
            experiment = result.record.experiment.model_copy(update={"batch_size": size})
            results.append(
                replace(result, record=result.record.model_copy(update={"experiment": experiment}))
            )
    (row,) = series_table(all_series(paired(results)))
    assert (row["experiments"], row["by"]) == ("mlp-16, mlp-64", "batch size")
    assert "from 32 on" in row["break-even"]
