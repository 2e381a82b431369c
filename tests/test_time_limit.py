"""Checkpoints. A time limit ends a training after whole epochs, a budget with a checkpoint."""

from __future__ import annotations

import math
import os
import shutil
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from conftest import HeldClock, MakeExperiment, MakeResult, MakeRun, PrepareStage
from outputs import comparison_rows, verdict
from result_files import pair_of, text_of, trained, with_record, with_timings, write_result
from training_process import NoTracker, train_here
from training_stage import contents

from photofinish.answer.decision import decide
from photofinish.config.devices import BudgetPlan
from photofinish.config.experiment import ExperimentPlan
from photofinish.config.losses_and_metrics import EarlyStopping
from photofinish.errors import UserError
from photofinish.results import EpochTiming, records
from photofinish.results.measured import TrainedRecords
from photofinish.runs import stage
from photofinish.runs.run import Run, epochs_in_time
from photofinish.runs.training import CheckpointStore, prune_checkpoints
from photofinish.tracking.documents import TAG_NOTE, TAG_TIME, training_document


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    """Return a store in which checkpoints of three epochs were saved."""
    store = CheckpointStore(tmp_path / "checkpoints")
    for epoch in (1, 2, 3):
        store.save(epoch, {"epochs_done": epoch})
    return store


def test_the_last_two_checkpoints_are_kept_and_loaded(store: CheckpointStore) -> None:
    kept = sorted(path.name.partition(".")[0] for path in store.folder.iterdir())
    assert kept == ["epoch-000002", "epoch-000003"]
    assert store.load_latest() == {"epochs_done": 3}
    # numbers of NumPy, such as a schedule's
    store.save(4, {"schedule": {"last_lr": [np.float64(0.5)]}, "network": OrderedDict()})
    assert store.load_latest() == {"schedule": {"last_lr": [0.5]}, "network": {}}


@pytest.mark.parametrize(("writing_seconds", "saves"), [(0.0, 100), (0.3, 11)])
def test_a_checkpoint_is_due_a_second_after_the_last_or_takes_a_thirtieth_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writing_seconds: float, saves: int
) -> None:
    clock, saved = HeldClock(), 0
    monkeypatch.setattr("time.monotonic", lambda: clock.now_seconds)
    write = "photofinish.runs.training.write_bytes_atomically"
    monkeypatch.setattr(write, lambda *_: clock.take(writing_seconds))
    store = CheckpointStore(tmp_path)
    for epoch in range(400):  # 100 s
        clock.take(0.25)
        if store.is_due():
            store.save(epoch, {})
            saved += 1
    assert saved == pytest.approx(saves, abs=3)


@pytest.mark.parametrize(("days", "stays"), [(29, True), (31, False)])
def test_checkpoints_are_removed_after_a_month(tmp_path: Path, days: int, stays: bool) -> None:
    run = tmp_path / "key"
    CheckpointStore(run).save(1, {})
    (run / "epochs").mkdir()
    (run / "epochs" / "epoch-0001.safetensors").write_bytes(b"weights")
    then = time.time() - days * 24 * 3600
    for path in [*run.rglob("*"), run]:
        os.utime(path, (then, then))
    prune_checkpoints(tmp_path)
    assert run.exists() is stays


class Code:
    """Object whose pickle calls a function."""

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, ("executed",)


@pytest.mark.parametrize("code", [Code(), {"param_groups": [{"norm": math.sqrt}]}], ids=type)
def test_a_checkpoint_with_code_is_named_removed_and_not_executed(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch, code: object
) -> None:
    monkeypatch.chdir(store.folder.parent)
    store.save(4, {"epochs_done": code})
    newest, said = store.paths()[0], list[str]()
    assert store.load_latest(said.append) == {"epochs_done": 3}
    assert [str(newest) in line for line in said] == [True]
    assert not newest.exists()
    assert not Path("executed").exists()


Budgeted = Callable[..., str]
SOON_SECONDS = 1e-9
"""A limit that leaves the fewest epochs, however slow the machine is."""


@pytest.fixture
def run(make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    return make_run()


def train(run: Run, experiment: ExperimentPlan) -> tuple[Path, records.TrainingTimes]:
    """Train without a result of earlier, and return the folder of the model and the times."""
    shutil.rmtree(run.out, ignore_errors=True)
    train_here(replace(run, experiment=experiment))
    timings = records.read_record(run.out / "timings/timings.json", records.TrainingTimes)
    return run.out / records.MODEL, timings


def test_a_raised_limit_goes_on_from_the_last(run: Run, make_experiment: MakeExperiment) -> None:
    stopping = {"patience": 9, "min_delta": 10.0}  # the first epoch stays the best one
    settings = {"epochs": 4, "early_stopping": stopping}
    expected = contents(train(run, make_experiment(**settings))[0])
    shutil.rmtree(".photofinish")
    limited, _ = train(run, make_experiment(**settings, time_limit_seconds=SOON_SECONDS))
    assert contents(limited)[records.WEIGHTS] == expected[records.WEIGHTS]
    model, timings = train(run, make_experiment(**settings, time_limit_seconds=1e9))
    assert contents(model) == expected
    assert (timings.resumed_at_epochs, timings.epochs_left) == ((2,), 0)


def test_a_finished_training_keeps_its_times_and_opens_a_run_of_mlflow_only_for_more_epochs(
    run: Run, prepare_stage: PrepareStage, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    trackers = Mock(side_effect=NoTracker)
    monkeypatch.setattr(stage, "Tracker", trackers)
    for limit_seconds, runs in ((SOON_SECONDS, 1), (SOON_SECONDS, 1), (None, 2)):
        files = prepare_stage(epochs=4, time_limit_seconds=limit_seconds).folder
        plans = files / "small.json", files / "cpu.json"
        stage.train("cpu", *plans, run.data, None, run.out)
        assert trackers.call_count == runs
    (kept,) = Path(".photofinish/checkpoints").glob("*/timings.json")
    timings = records.read_record(kept, records.TrainingTimes)
    records.write_record(kept, timings.model_copy(update={"total_seconds": 5000.0}))
    stage.train("cpu", *plans, run.data, None, run.out)
    assert "83 min" in capfd.readouterr().out
    assert (run.out / "timings/timings.json").read_bytes() == kept.read_bytes()
    monkeypatch.setattr("photofinish.runs.train.train_rank", Mock(return_value="no driver"))
    stage.train("cpu", *plans, run.data, None, run.out)
    assert records.read_training(run.out / "model").status == "unavailable"


@pytest.mark.parametrize(
    ("limit_seconds", "spent_seconds", "epochs", "left"),
    [(100, 20, 1, 8), (100, 95, 9, 0), (100, 95, 1, 1), (100, 200, 2, 0), (None, 200, 1, 9)],
)
def test_no_epoch_begins_that_would_end_after_the_limit_except_the_second(
    limit_seconds: float | None, spent_seconds: float, epochs: int, left: int
) -> None:
    timings = [EpochTiming(9.0, 1.0, 0.0)] * epochs
    assert min(9, epochs_in_time(limit_seconds, spent_seconds, timings)) == left


def limited(make_result: MakeResult) -> TrainedRecords:
    """Make up two epochs of 20 and 22 s out of 50."""
    result = trained(make_result, epoch_seconds=(19.9, 21.9), total_seconds=52.0, accuracy=0.5)
    result = with_timings(result, epochs_left=48)
    experiment = result.record.experiment.model_copy(update={"epochs": 50})
    return with_record(result, experiment=experiment)


def test_a_limited_job_that_may_stop_early_has_its_epochs_at_most(make_result: MakeResult) -> None:
    """No GPU shows at which epoch it stops: perhaps at the next one."""
    cpu = limited(make_result)
    stopping = {"early_stopping": EarlyStopping(patience=5)}
    experiment = cpu.record.experiment.model_copy(update=stopping)
    found = verdict(pair_of(with_record(cpu, experiment=experiment)))
    here, planned = found.job.worth.cpu_time, decide(pair_of(cpu)).worth.cpu_time
    assert here.seconds == planned.seconds
    assert here.interval[0] < cpu.times.total_seconds < planned.interval[0]
    assert here.interval[1] == planned.interval[1]
    assert "at most ~18 min (" in found.answer
    assert "an upper bound, as it may stop early" in found.cautions[0]


def test_a_limited_job_is_marked_and_not_compared(make_result: MakeResult, tmp_path: Path) -> None:
    cpu = limited(make_result)
    gpu = trained(make_result, device="gpu", epoch_seconds=(1.0,) * 50, total_seconds=60.0)
    pair = pair_of(cpu, gpu)
    answer = verdict(pair)
    assert "~18 min (11-28) on the CPU" in answer.answer
    assert answer.model == "yes, bit for bit over the 2 epochs that both trained"
    assert "50.00% on the CPU after 2 of 50 epochs and 75.00% on the GPU after 50" in text_of(
        answer
    )
    assert pair.speedups
    assert pair.parity
    compared = {layer.name for layer in pair.parity.layers}
    assert compared.isdisjoint({"test predictions", "test accuracy", "final weights"})
    assert decide(pair).answer == "Yes"
    early = trained(make_result, device="gpu", epoch_seconds=(1.0,) * 12, total_seconds=20.0)
    assert pair_of(cpu, early).cpu.epochs == 12  # it stopped early

    row, gpu_row = comparison_rows([pair])
    assert (row["epochs"], row["epochs_trained"], row["total_seconds"]) == (50, 2, 52.0)
    assert row["job_extrapolated"] == "from 2 of 50 epochs"
    assert row["job_seconds_low"] < row["job_seconds"] < row["job_seconds_high"]
    assert gpu_row["job_extrapolated"] is None

    write_result(tmp_path, cpu)
    document = training_document(cpu.experiment, "cpu", tmp_path)
    assert document
    assert document.tags[TAG_TIME].startswith("~")
    assert "extrapolated from 2 of 50 epochs" in document.tags[TAG_NOTE]


@pytest.fixture
def budgeted(run: Run, prepare_stage: PrepareStage, monkeypatch: pytest.MonkeyPatch) -> Budgeted:
    """Train as the stage does within a budget, if there is one. Return the error that ends it."""
    monkeypatch.setattr(stage, "Tracker", NoTracker)

    def train(budget: float | None, **settings: Any) -> str:
        folder = prepare_stage(**settings).folder
        plan = BudgetPlan(currency="EUR", cpu_hour=3600.0, gpu_hour=None, budget=budget)
        (folder / "budget.json").write_text(plan.model_dump_json(), encoding="utf-8")
        plans = folder / "small.json", folder / "cpu.json"
        try:
            stage.train("cpu", *plans, run.data, None, run.out, folder / "budget.json")
        except UserError as error:
            return str(error)
        return ""

    return train


@pytest.mark.parametrize(
    ("settings", "done"),
    [
        ({"epochs": 1, "repeats": 2}, "repeat 2: stopped after epoch 0"),
        ({"epochs": 1, "seeds": 2}, "seed 1: stopped after epoch 0"),
    ],
)
def test_a_stopped_training_goes_on_and_ends_with_the_same_bits(
    budgeted: Budgeted, run: Run, settings: dict[str, Any], done: str
) -> None:
    assert not budgeted(None, **settings)
    learned = contents(run.out / "model")
    for folder in (run.out, Path(".photofinish")):
        shutil.rmtree(folder)
    error = budgeted(1e-6, **settings)
    assert done in error
    assert "compare.budget" in error
    assert not (run.out / "timings/timings.json").exists()
    assert not budgeted(1e9, **settings)
    assert contents(run.out / "model") == learned


def test_seeds_that_stopped_early_are_not_trained_again(budgeted: Budgeted, run: Run) -> None:
    settings: dict[str, Any] = {"epochs": 9, "seeds": 2, "early_stopping": {"patience": 1}}
    settings["optimizer"] = {"name": "sgd", "lr": 1e-9}
    assert not budgeted(None, **settings)
    learned = contents(run.out / "model")
    assert not budgeted(None, **settings)
    assert contents(run.out / "model") == learned


def test_money_spent_before_counts_until_the_budget_is_raised(budgeted: Budgeted, run: Run) -> None:
    for _ in range(2):  # the second time, no epoch is trained
        error = budgeted(1e-6, epochs=3)
        assert "after epoch 1" in error
    spent = float(error.partition(" EUR")[0].rpartition(" ")[2])
    assert "after epoch 2" in budgeted(spent + 0.02, epochs=3)
    assert not budgeted(1e9, epochs=3)
    timings = records.read_record(run.out / "timings/timings.json", records.TrainingTimes)
    assert timings.resumed_at_epochs == (1, 2)
    assert timings.total_seconds > spent
