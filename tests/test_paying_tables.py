"""The report's table of when a GPU pays, by its costs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from conftest import MakeResult
from result_files import changed_history, pair_of, trained, with_record

from photofinish.comparing.pairs import Comparison
from photofinish.config.compare import Comparing, Prices
from photofinish.config.early_stopping import EarlyStopping
from photofinish.machine.energy import Energy
from photofinish.reporting.tables import paying_table

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
    energy = table["energy of the epochs"][2]
    assert energy.startswith("CPU: unavailable: ")
    assert energy.endswith("; GPU: measured: the GPU (NVML)")
    table = cells(pair, Comparing(target_accuracy=0.99))
    missed = ["n/a", "n/a", "not reached; the best is 0.5"]
    assert table["time to 0.99 validation accuracy"] == missed
    assert "energy to 0.99 validation accuracy" not in table


def test_trainings_that_stop_early_have_the_time_to_their_lowest_loss(pair: Comparison) -> None:
    runs = []
    for run, best in zip(pair.trained, (1, 3), strict=True):
        losses = [1.0 + abs(epoch.epoch - best) for epoch in run.history]
        stopping = {"early_stopping": EarlyStopping(patience=2)}
        patient = run.record.experiment.model_copy(update=stopping)
        stopped = replace(run, history=changed_history(run, validation_loss=losses))
        runs.append(with_record(stopped, experiment=patient))
    table = cells(pair_of(*runs), PRICED)
    cpu, gpu, finding = table["time to the lowest validation loss"]
    assert (cpu, gpu) == ("4.5 s", "10 s")
    assert "CPU: in epoch 1 of 5" in finding
    assert "GPU: in epoch 3 of 5" in finding
