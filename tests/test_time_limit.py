"""A time limit ends a training on the CPU after whole epochs, a budget with a checkpoint."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from conftest import ROOT, MakeExperiment, MakeResult, PrepareStage
from outputs import comparison_rows, verdict
from result_files import job_of, pair_of, text_of, trained, with_record, with_timings, write_result
from training_process import NoTracker, train_here
from training_stage import TrainingStage, contents

from photofinish.answer.decision import decide
from photofinish.answer.times import job_time
from photofinish.answer.uncertainty import MACHINE, ONCE, error_of_mean
from photofinish.config.base import read_plan
from photofinish.config.compare import Comparing
from photofinish.config.devices import BudgetPlan
from photofinish.config.experiment import ExperimentPlan
from photofinish.config.loader import read_params
from photofinish.config.metrics import EarlyStopping
from photofinish.data.packed import PackedSplit
from photofinish.errors import EXIT_FAILED
from photofinish.machine.fingerprint import CpuTarget
from photofinish.planning.plan import write_plan
from photofinish.results import EpochTiming, records
from photofinish.results.measured import TrainedRecords
from photofinish.runs import stage
from photofinish.runs.run import Run, epochs_in_time
from photofinish.tracking.documents import TAG_NOTE, TAG_TIME, training_document

SOON_SECONDS = 1e-9
"""A limit that leaves the fewest epochs, however slow the machine is."""


@pytest.fixture
def run(
    cpu_host: CpuTarget, packed_split: PackedSplit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Run:
    monkeypatch.chdir(tmp_path)
    experiment: Any = None
    return Run("small", "cpu", experiment, cpu_host, packed_split.folder, tmp_path / "small/cpu")


def train(run: Run, experiment: ExperimentPlan) -> tuple[Path, records.TrainingTimes]:
    """Train without a result of earlier, and return the folder of the model and the times."""
    shutil.rmtree(run.out, ignore_errors=True)
    train_here(replace(run, experiment=experiment))
    timings = records.read_record(run.out / "timings/timings.json", records.TrainingTimes)
    return run.out / records.MODEL, timings


def test_a_limited_training_is_the_start_of_the_whole_one_and_resumes_to_the_same_epoch(
    run: Run, make_experiment: MakeExperiment
) -> None:
    schedule = {"name": "cosine"}
    every = make_experiment(epochs=4, schedule=schedule, save_weights="every_epoch", seed=7)
    whole, timings = train(run, every)
    assert (len(timings.epochs), timings.epochs_left) == (4, 0)
    second_epoch = (whole / "epochs/epoch-0002.safetensors").read_bytes()
    start = records.read_history(whole)[:2]

    settings = {"epochs": 4, "schedule": schedule, "seed": 7, "repeats": 2, "seeds": 2}
    experiment = make_experiment(time_limit_seconds=SOON_SECONDS, **settings)
    model, timings = train(run, experiment)
    learned = contents(model)
    assert learned[records.WEIGHTS] == second_epoch
    assert records.read_history(model) == start
    (further,) = records.read_seeds(model, experiment)
    assert [len(each) for each in (*timings.repeats, *timings.seeds, further.history)] == [2, 2, 2]
    assert timings.epochs_left == 2

    # Killed before DVC stored it
    model, again = train(run, experiment)
    assert contents(model) == learned
    assert again == timings


def test_a_limit_that_was_raised_goes_on_from_the_last_epoch_although_an_earlier_one_was_best(
    run: Run, make_experiment: MakeExperiment
) -> None:
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
    kept.write_bytes(kept.read_bytes()[:100])
    stage.train("cpu", *plans, run.data, None, run.out)
    assert f"{kept.name} is damaged" in capfd.readouterr().out
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


PARAMS = """\
defaults:
  {model: linear, optimizer: {name: sgd, lr: 0.1}, input: resident, epochs: 5, batch_size: 16,
   precision: fp32, seed: 0}
devices: {cpu: {time_limit: 10 min}}
datasets: {digits: {source: digits, validation: 0.1, test: 0.1}}
experiments:
  small: {dataset: digits}
  longer: {dataset: digits, time_limit: 1.5 h}
"""


def test_a_time_limit_is_in_the_plans_of_its_trainings_on_the_cpu_alone(tmp_path: Path) -> None:
    def plan(text: str) -> dict[str, bytes]:
        (tmp_path / "params.yaml").write_text(text, encoding="utf-8")
        write_plan(read_params(tmp_path / "params.yaml"), tmp_path / "plan", ROOT / "stages")
        return contents(tmp_path / "plan")

    def limit_seconds(file: str) -> float | None:
        experiment = read_plan(tmp_path / f"plan/{file}.json", ExperimentPlan)
        return experiment.time_limit_seconds

    planned = plan(PARAMS)
    limits = {name: limit_seconds(f"on_cpu/{name}") for name in ("small", "longer")}
    assert limits == {"small": 600.0, "longer": 5400.0}
    folders = "experiments", "steps", "steps_on_cpu"
    assert {limit_seconds(f"{folder}/longer") for folder in folders} == {None}
    for old, new, name in (
        ("10 min", "11 min", "small"),
        ("cpu: {time_limit: 10 min}", "", "small"),
        ("1.5 h", "1.6 h", "longer"),
        (", time_limit: 1.5 h", "", "longer"),
    ):
        changed = plan(PARAMS.replace(old, new))
        differing = {file for file, content in planned.items() if changed[file] != content}
        assert (differing, changed.keys()) == ({f"on_cpu/{name}.json"}, planned.keys()), new
        assert plan(PARAMS) == planned


def limited(make_result: MakeResult) -> TrainedRecords:
    """Make up two epochs of 20 and 22 s out of 50."""
    result = trained(make_result, epoch_seconds=(19.9, 21.9), total_seconds=52.0, accuracy=0.5)
    result = with_timings(result, epochs_left=48)
    experiment = result.record.experiment.model_copy(update={"epochs": 50})
    return with_record(result, experiment=experiment)


def test_a_limited_job_is_extrapolated_with_an_interval(make_result: MakeResult) -> None:
    job = job_of(limited(make_result))
    whole = 52 + 48 * 21
    assert job.whole_seconds == pytest.approx(whole)
    rented = decide(pair_of(limited(make_result), None, Comparing())).worth
    assert rented.about == "renting"  # though it took a minute
    assert rented.here.seconds == pytest.approx(whole)
    # Of 2 epochs in 50, the mean's error is 1 in 21 s. Start-up took 10 s, and may be off by 1.3.
    passes = math.sqrt(48 / 50) * error_of_mean((20.0, 22.0)) * 1050 / whole
    half = math.hypot(MACHINE, passes, ONCE * 10 / whole)
    ends = whole / math.exp(half), whole * math.exp(half)
    assert job_time(job).interval == pytest.approx(ends, rel=1e-3)


def test_a_limited_job_that_may_stop_early_takes_at_most_its_planned_epochs(
    make_result: MakeResult,
) -> None:
    """No GPU shows at which epoch it stops: perhaps at the next one."""
    cpu = limited(make_result)
    stopping = {"early_stopping": EarlyStopping(patience=5)}
    experiment = cpu.record.experiment.model_copy(update=stopping)
    found = verdict(pair_of(with_record(cpu, experiment=experiment)))
    here, planned = found.job.worth.here, decide(pair_of(cpu)).worth.here
    assert here.seconds == planned.seconds
    assert here.interval[0] < cpu.times.total_seconds < planned.interval[0]
    assert here.interval[1] == planned.interval[1]
    assert "at most ~18 min (" in found.answer
    assert "an upper bound, as it may stop early" in found.cautions[0]


def test_a_limited_job_is_marked_and_its_end_is_never_compared(
    make_result: MakeResult, tmp_path: Path
) -> None:
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


def within_budget(stage: TrainingStage, budget: float | None) -> tuple[int | None, str]:
    """Run the stage, and return its exit code and the last line that it prints."""
    plan = BudgetPlan(currency="EUR", cpu_hour=3600.0, gpu_hour=None, budget=budget)
    (stage.folder / "budget.json").write_text(plan.model_dump_json(), encoding="utf-8")
    process = stage.fork()
    output, _ = process.communicate()
    return process.returncode, output.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "done"),
    [
        ({"epochs": 1, "repeats": 2}, "repeat 2: stopped after epoch 0"),
        ({"epochs": 1, "seeds": 2}, "seed 1: stopped after epoch 0"),
    ],
)
def test_a_stopped_training_goes_on_and_ends_with_the_same_bits(
    prepare_stage: PrepareStage, settings: dict[str, Any], done: str
) -> None:
    whole, stopped = (prepare_stage(name, **settings) for name in ("whole", "stopped"))
    assert within_budget(whole, budget=None)[0] == 0

    code, error = within_budget(stopped, budget=1e-6)
    assert code == EXIT_FAILED
    assert done in error
    assert "compare.budget" in error
    assert not (stopped.out / "timings" / "timings.json").exists()

    assert within_budget(stopped, budget=1e9)[0] == 0
    assert stopped.learned() == whole.learned()


@pytest.mark.slow
def test_seeds_that_stopped_early_are_not_trained_again(prepare_stage: PrepareStage) -> None:
    slow = {"optimizer": {"name": "sgd", "lr": 1e-9}, "early_stopping": {"patience": 1}}
    stage = prepare_stage(epochs=9, seeds=2, **slow)
    assert within_budget(stage, budget=None)[0] == 0
    learned = stage.learned()
    assert within_budget(stage, budget=None)[0] == 0
    assert stage.learned() == learned


@pytest.mark.slow
def test_money_spent_before_counts_until_the_budget_is_raised(prepare_stage: PrepareStage) -> None:
    stage = prepare_stage(epochs=3)
    for _ in range(2):  # the second time, no epoch is trained
        code, error = within_budget(stage, budget=1e-6)
        assert (code, "after epoch 1" in error) == (EXIT_FAILED, True)

    spent = float(error.partition(" EUR")[0].rpartition(" ")[2])
    code, error = within_budget(stage, budget=spent + 0.02)
    assert (code, "after epoch 2" in error) == (EXIT_FAILED, True)

    assert within_budget(stage, budget=1e9)[0] == 0
    timings = records.read_record(stage.out / "timings" / "timings.json", records.TrainingTimes)
    assert timings.resumed_at_epochs == (1, 2)
    assert timings.total_seconds > spent
