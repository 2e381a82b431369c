"""Energy and cost of a training, and the table of when a GPU pays, calculated by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pynvml
import pytest
from conftest import HeldClock, MakeResult
from result_files import as_result, changed_history, pair_of, trained, with_record, with_timings

from photofinish.answer.result import Trained
from photofinish.answer.spending import TimeToTarget, cost, resource_use
from photofinish.config.compare import Comparing, Prices
from photofinish.config.early_stopping import EarlyStopping
from photofinish.machine.energy import Energy, EnergyMeter, added_up
from photofinish.reporting.comparison_rows import comparison_rows
from photofinish.reporting.figures_table import figures_table
from photofinish.results.records import DeviceLabel

GPU = Energy(joules=900.0)
PRICED = Comparing(target_accuracy=0.9, prices=Prices(currency="EUR", cpu_hour=0.36, gpu_hour=3.6))


def metered(
    make_result: MakeResult, energy: Energy | None = None, device: DeviceLabel = "gpu"
) -> Trained:
    """Make a job of 36 s with three epochs of 10 s, the first of which reaches 90 %."""
    result = trained(make_result, device=device, epoch_seconds=(9.9,) * 3, total_seconds=36.0)
    history = changed_history(result, validation_accuracy=[0.9, 0.95, 0.99])
    timings = result.timings.model_copy(update={"energy": energy, "startup_seconds": 5.0})
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
    result = metered(make_result, GPU)
    settings = PRICED.model_copy(update={"target_accuracy": 0.995})
    found = resource_use(as_result(result), settings)
    assert found.target == TimeToTarget(0.995, None, None)
    assert found.cost_to_target is None
    assert found.cost == pytest.approx(36 / 3600 * 3.6)
    pair = pair_of(metered(make_result, device="cpu"), result, settings)
    figures = {row[""]: row["GPU"] for row in figures_table(pair)}
    assert figures["target accuracy"] == "0.995"
    assert "time to the target" not in figures
    further = {"seeds": (result.timings.epochs,) * 4, "repeats": (result.timings.epochs[:2],)}
    found = resource_use(as_result(with_timings(result, **further)), settings)
    assert found.cost == pytest.approx((36 + 4 * 30 + 20) / 3600 * 3.6)


def test_trainings_that_stop_early_have_the_time_to_their_lowest_loss(
    make_result: MakeResult,
) -> None:
    runs = []
    for device, best in (("cpu", 1), ("gpu", 3)):
        run = metered(make_result, device=device)
        losses = [1.0 + abs(epoch.epoch - best) for epoch in run.history]
        stopping = {"early_stopping": EarlyStopping(patience=2)}
        patient = run.record.experiment.model_copy(update=stopping)
        stopped = replace(run, history=changed_history(run, validation_loss=losses))
        runs.append(with_record(stopped, experiment=patient))
    table = {row[""]: row for row in figures_table(pair_of(*runs, PRICED))}
    lowest = table["time to the lowest loss"]
    assert (lowest["CPU"], lowest["GPU"]) == ("15 s", "35 s")


def test_the_table_has_costs_also_to_the_target_and_nothing_where_they_are_unknown(
    make_result: MakeResult,
) -> None:
    pair = pair_of(metered(make_result, device="cpu"), metered(make_result, GPU), PRICED)
    cpu, gpu = comparison_rows([pair])
    assert (gpu["energy_joules"], gpu["cost_currency"]) == (900.0, "EUR")
    assert gpu["cost"] == pytest.approx(36 / 3600 * 3.6)
    assert cpu["cost"] == pytest.approx(36 / 3600 * 0.36)
    # One of three epochs, after 5 s of start-up.
    assert (gpu["target_epoch"], gpu["target_seconds"]) == (1, pytest.approx(15.0))
    assert gpu["target_cost"] == pytest.approx(15 / 3600 * 3.6)
    assert cpu["energy_joules"] is None
    table = {row[""]: [row["CPU"], row["GPU"]] for row in figures_table(pair)}
    expected = {
        "energy of the epochs": ["n/a", "900 J"],
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


MeasureEnergy = Callable[..., Energy]


@pytest.fixture
def energy_of(monkeypatch: pytest.MonkeyPatch) -> MeasureEnergy:
    """Measure made-up GPUs, which count millijoules. The driver does not report `silent`."""
    millijoules, clock = {"GPU-one": 5_000, "GPU-two": 7_000}, HeldClock()

    def find(uuid: str) -> str:
        if uuid == "GPU-slice":
            raise pynvml.NVMLError_NotFound
        return uuid

    def read(handle: str) -> int:
        if handle == "GPU-silent":
            raise pynvml.NVMLError_NotSupported
        return millijoules[handle]

    def measured(*uuids: str | None, seconds: float = 10, **counted: int) -> Energy:
        meter = EnergyMeter(uuids)
        meter.begin()
        for uuid, more in counted.items():
            millijoules[f"GPU-{uuid}"] += more
        clock.take(seconds)
        return meter.training_ended()

    monkeypatch.setattr("time.monotonic", lambda: clock.now_seconds)
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", find)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetTotalEnergyConsumption", read)
    return measured


def test_the_gpus_of_all_processes_are_added_up(energy_of: MeasureEnergy) -> None:
    found = energy_of("one", "two", one=10_500, two=2_000)
    assert found == Energy(joules=12.5)
    none = energy_of(None)
    assert added_up([found, found]) == Energy(joules=25.0)
    assert added_up([found, none]) == none
    assert added_up([]) is None


@pytest.mark.parametrize(
    ("uuid", "seconds", "reason"),
    [
        ("silent", 10, "Not Supported"),
        ("slice", 10, "Not Found"),  # part of a divided GPU, whose counter is the whole GPU's
        (None, 10, "NVIDIA"),
        ("one", 0.5, "too short"),
    ],
)
def test_a_gpu_without_a_figure_has_a_reason(
    energy_of: MeasureEnergy, uuid: str | None, seconds: float, reason: str
) -> None:
    found = energy_of(uuid, seconds=seconds, one=1_000)
    assert found.joules is None
    assert reason in str(found.reason)
