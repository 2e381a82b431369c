"""Trainings from several seeds: their bits, how they resume, and what they show."""

from __future__ import annotations

import re
import shutil
import statistics
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from conftest import MakeExperiment
from outputs import record_of, verdict
from planted_jobs import SCORES, compared, lasting, make_model, with_seeds
from result_files import read_pair, text_of
from training_process import measure_here, train_here

from photofinish.answer.seeds import over_seeds
from photofinish.config.compare import Comparing
from photofinish.config.losses_and_metrics import Metric
from photofinish.data.packed import PackedSplit
from photofinish.evaluation.evaluate import evaluate, write_evaluation
from photofinish.machine.fingerprint import CpuTarget
from photofinish.reporting.answers import answer_of
from photofinish.reporting.sentences import chance
from photofinish.reporting.tables import seeds_table
from photofinish.results import records
from photofinish.results.trained import SeedRun, SeedScores
from photofinish.runs.run import Run
from photofinish.runs.setup import Setup
from photofinish.training.trainer import Trainer

Train = Callable[..., Path]


@pytest.fixture
def train(
    make_experiment: MakeExperiment,
    cpu_host: CpuTarget,
    packed_split: PackedSplit,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Train:
    """Train as a stage does, and return its result folder."""
    monkeypatch.chdir(tmp_path)

    def train(name: str, **settings: Any) -> Path:
        experiment, out = make_experiment(**settings), tmp_path / name / "cpu"
        run = Run(name, "cpu", experiment, cpu_host, packed_split.folder, out)
        measure_here(run)
        train_here(run)
        return run.out / records.MODEL

    return train


def seed_runs(learned: Path) -> list[SeedRun]:
    return list(records.read_record(learned / "seeds.json", records.FurtherSeeds).runs)


def test_a_further_seed_gives_what_an_experiment_of_that_seed_gives(train: Train) -> None:
    further = seed_runs(train("several", seed=3, seeds=2, epochs=2))
    alone = train("alone", seed=4, epochs=2)
    assert [run.seed for run in further] == [4]
    record = records.read_training(alone)
    assert isinstance(record, records.TrainingRecord)
    assert further[0].weights_sha256 == record.weights_sha256
    assert list(further[0].history) == records.read_history(alone)


def test_killed_within_a_seed_it_resumes_there(
    train: Train, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("CHECKPOINT_SECONDS", "CHECKPOINT_TIMES"):
        monkeypatch.setattr(f"photofinish.runs.training.{name}", 0)
    epochs, settings = Trainer.epochs, {"seeds": 3, "epochs": 3}

    def killed(trainer: Trainer) -> Iterator[Any]:
        for epoch in epochs(trainer):
            yield epoch
            if trainer.experiment.seed == 2:
                raise KeyboardInterrupt

    whole = seed_runs(train("undisturbed", **settings))
    shutil.rmtree(".photofinish")
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "epochs", killed)
        with pytest.raises(KeyboardInterrupt):
            train("small", **settings)
    capsys.readouterr()
    assert seed_runs(train("small", **settings)) == whole
    resumed = re.findall(r"seed (\d)  resumes after epoch (\d)", capsys.readouterr().out)
    assert resumed == [("1", "3"), ("2", "1")]


def test_a_seed_that_trained_longer_than_todays_limit_stays(train: Train) -> None:
    """Another number of seeds trains the first one again, and finds the others' checkpoints."""
    longer = seed_runs(train("small", seeds=2, epochs=4))
    runs = seed_runs(train("small", seeds=3, epochs=4, time_limit_seconds=1e-9))
    assert runs[0] == longer[0]
    assert len(runs[1].history) == 2


def test_the_data_of_one_seed_are_gone_before_those_of_the_next_are_loaded(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: weakref.WeakSet[Setup] = weakref.WeakSet()
    found_before = []

    class Watched(Setup):
        def __init__(self, *arguments: Any) -> None:
            found_before.append(len(loaded))
            super().__init__(*arguments)
            loaded.add(self)

    monkeypatch.setattr("photofinish.runs.training.Setup", Watched)
    train("several", seeds=4, epochs=1)
    assert found_before == [0, 0, 0]


def test_seeds_are_evaluated_and_reported(train: Train, packed_split: PackedSplit) -> None:
    model = train("small", seeds=3, epochs=2)
    results, experiment = model.parent.parent, records.read_training(model).experiment
    gone = records.Unavailable(device="gpu", experiment=experiment, reason="none")
    records.write_record(results / "gpu" / records.MODEL / records.RECORD, gone)
    judged = evaluate("small", {"cpu": model}, packed_split)
    write_evaluation(judged, results / records.EVALUATED)
    settings = Comparing(target_accuracy=0.01)
    pair = read_pair("small", results, settings)
    scores = [pair.cpu.trained.scores, *pair.cpu.trained.scores.seeds]
    accuracies = [cast("float", each.test_accuracy) for each in scores]
    table = {row["of"]: row for row in seeds_table(record_of(pair))}
    assert table["test accuracy"]["mean"] == f"{statistics.fmean(accuracies):.2%}"
    assert table["epochs to 0.01 validation accuracy"]["mean"] == "1.0"
    details = [each for each in verdict(pair).details if each.startswith("Over 3 seeds, the test")]
    assert len(details) == 1

    by_metric = evaluate("small", {"cpu": model}, packed_split, (Metric(name="auroc"),))
    write_evaluation(by_metric, results / records.EVALUATED)
    assert "Over 3 seeds, the auroc is" in text_of(verdict(read_pair("small", results)))


def test_a_metric_that_is_no_number_for_one_seed_is_the_main_score_of_none(
    train: Train, packed_split: PackedSplit, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[dict[str, float]] = [{"odd": 0.5}, {}, {"odd": 0.5}]
    monkeypatch.setattr("photofinish.evaluation.evaluate.custom_scores", lambda *_: found.pop(0))
    model = train("small", seeds=3, epochs=1)
    scores = evaluate("small", {"cpu": model}, packed_split).evaluation.devices["cpu"]
    assert {each.main for each in (scores, *scores.seeds)} == {"test_accuracy"}
    assert len(scores.of_all_seeds(scores.main)) == 3


def test_the_devices_difference_is_compared_with_that_of_two_seeds() -> None:
    """0.03 between the devices from each seed; 0.04, 0.08 and 0.04 between two seeds."""
    jobs = []
    for device, (first, *others) in (("cpu", (0.80, 0.84, 0.88)), ("gpu", (0.83, 0.87, 0.91))):
        model = make_model(device, scores=SCORES.model_copy(update={"test_accuracy": first}))
        jobs.append(lasting(30.0, device, trained=with_seeds(model, *others)))
    answer = verdict(compared(*jobs))
    assert (
        "Over 3 seeds, the test accuracy differs by 3.00% between the devices "
        "and by 5.33% between two seeds."
    ) in text_of(answer)
    seeds = answer_of(answer).seeds
    assert [each.device for each in seeds] == ["cpu"] * 3 + ["gpu"] * 3
    scores = [each.score.value for each in seeds if each.score]
    assert scores == [0.80, 0.84, 0.88, 0.83, 0.87, 0.91]


def test_seeds_of_values_differ_in_their_mean_absolute_error() -> None:
    main = "mean_absolute_error"
    further = SeedScores(seed=1, main=main, test_loss=0.5, metrics={main: 3.0})
    changed = {"main": main, "metrics": {main: 2.0}, "seeds": (further,)}
    model = with_seeds(make_model(), 0.95)
    values = replace(model, scores=SCORES.model_copy(update=changed))
    assert chance(over_seeds(values, 0.9), None) == (
        "Over 2 seeds, the mean absolute error is 2.5 (-0.6569 to 5.657). Two seeds differ by 1."
    )
    assert " to 100.00%). " in chance(over_seeds(model, 0.9), None)
