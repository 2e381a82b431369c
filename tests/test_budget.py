"""A training that has cost its budget stops with a checkpoint, and goes on when it is raised."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import PrepareStage
from training_stage import TrainingStage

from photofinish.config.budget import BudgetPlan
from photofinish.errors import EXIT_FAILED
from photofinish.results.records import Timings, read_record

pytestmark = pytest.mark.slow


def run(stage: TrainingStage, budget: float | None) -> tuple[int | None, str]:
    """Run the stage, and return its exit code and the last line that it prints."""
    plan = BudgetPlan(currency="EUR", cpu_hour=3600.0, gpu_hour=None, budget=budget)
    (stage.folder / "budget.json").write_text(plan.model_dump_json(), encoding="utf-8")
    process = stage.fork()
    output, _ = process.communicate()
    return process.returncode, output.splitlines()[-1]


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
    assert run(whole, budget=None)[0] == 0

    code, error = run(stopped, budget=1e-6)
    assert code == EXIT_FAILED
    assert done in error
    assert "compare.budget" in error
    assert not (stopped.out / "timings" / "timings.json").exists()

    assert run(stopped, budget=1e9)[0] == 0
    assert stopped.learned() == whole.learned()


def test_seeds_that_stopped_early_are_not_trained_again(prepare_stage: PrepareStage) -> None:
    slow = {"optimizer": {"name": "sgd", "lr": 1e-9}, "early_stopping": {"patience": 1}}
    stage = prepare_stage(epochs=9, seeds=2, **slow)
    assert run(stage, budget=None)[0] == 0
    learned = stage.learned()
    assert run(stage, budget=None)[0] == 0
    assert stage.learned() == learned


def test_money_spent_before_counts_until_the_budget_is_raised(prepare_stage: PrepareStage) -> None:
    stage = prepare_stage(epochs=3)
    for _ in range(2):  # the second time, no epoch is trained
        code, error = run(stage, budget=1e-6)
        assert (code, "after epoch 1" in error) == (EXIT_FAILED, True)

    spent = float(error.partition(" EUR")[0].rpartition(" ")[2])
    code, error = run(stage, budget=spent + 0.02)
    assert (code, "after epoch 2" in error) == (EXIT_FAILED, True)

    assert run(stage, budget=1e9)[0] == 0
    timings = read_record(stage.out / "timings" / "timings.json", Timings)
    assert timings.resumed_at_epochs == (1, 2)
    assert timings.total_seconds > spent
