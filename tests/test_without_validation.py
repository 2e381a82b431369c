"""A data set without a validation part: the last weights are kept, and all else works."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import MakeExperiment, MakeTrainer, network_with_state
from in_process import train_and_evaluate
from outputs import write_report
from result_files import read_pair

from photofinish.config.compare import Comparing
from photofinish.config.loader import read_params
from photofinish.data.packed import PackedSplit
from photofinish.errors import ConfigError
from photofinish.machine.fingerprint import CpuTarget
from photofinish.results import records
from photofinish.results.learned import weights_of
from photofinish.tracking.documents import training_document

NONE: dict[str, Any] = {"source": "digits", "validation": 0, "test": 297}
PARAMS: dict[str, Any] = {
    "defaults": {"epochs": 2, "batch_size": 128, "optimizer": {"name": "sgd", "lr": 0.1}},
    "devices": {"cpu": {"threads": 1}},
    "datasets": {"digits": NONE},
    "experiments": {"one": {"dataset": "digits", "model": "linear", "ema": 0.5, "seeds": 2}},
    "compare": {"target_accuracy": 0.5},
}


@pytest.mark.parametrize("loader", [False, True])
def test_an_experiment_is_trained_judged_and_reported(
    tmp_path: Path, cpu_host: CpuTarget, monkeypatch: pytest.MonkeyPatch, loader: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    params = {**PARAMS, "defaults": {**PARAMS["defaults"]}}
    if loader:
        params["defaults"]["input"] = {"name": "loader"}
    results = train_and_evaluate("one", params, tmp_path, cpu_host)
    split = PackedSplit(tmp_path / "split").manifest
    assert split.counts == {"train": 1500, "test": 297}
    history = records.read_history(results / "cpu" / records.MODEL)
    assert [(each.validation_loss, each.validation_accuracy) for each in history] == [
        (None, None),
        (None, None),
    ]
    pair = read_pair("one", results, Comparing(target_accuracy=0.5))
    run = pair.cpu.trained
    assert run
    assert not pair.seeds["cpu"].targets
    assert isinstance(run.scores.test_accuracy, float)
    document = training_document("one", "cpu", results.parent)
    assert document
    assert "validation_loss" not in {metric.key for metric in document.metrics}
    write_report([pair], tmp_path / "report")
    assert (tmp_path / "report/index.html").is_file()


def test_the_last_weights_are_kept_and_are_those_of_a_training_that_validates(
    make_trainer: MakeTrainer, make_experiment: MakeExperiment
) -> None:
    experiment = make_experiment(ema=0.5)
    validating = make_trainer(experiment, network_with_state())
    for _ in validating.epochs():
        pass
    other = make_trainer(experiment, network_with_state())
    other.validation = None
    other.prepare()
    for metrics, _ in other.epochs():
        assert (metrics.validation_loss, metrics.validation_accuracy) == (None, None)
    assert weights_of(other.result) == weights_of(validating.result)


@pytest.mark.parametrize(
    ("key", "value"), [("early_stopping", {"patience": 2}), ("schedule", "reduce_on_plateau")]
)
def test_a_setting_that_follows_validation_is_refused_with_its_key(
    params_file: Path, key: str, value: Any
) -> None:
    one = {**PARAMS["experiments"]["one"], key: value}
    params_file.write_text(yaml.safe_dump({**PARAMS, "experiments": {"one": one}}))
    with pytest.raises(ConfigError, match=f"  experiments.one.{key}\n"):
        read_params(params_file)


def test_a_custom_schedule_that_follows_validation_ends_with_its_key(
    trainer_of: MakeTrainer,
) -> None:
    trainer = trainer_of(schedule={"name": "reduce_on_plateau"})
    trainer.validation = None
    with pytest.raises(ConfigError, match=r"^schedule "):
        next(trainer.epochs())


def test_the_test_part_is_needed(params_file: Path) -> None:
    params = {**PARAMS, "datasets": {"digits": {**NONE, "test": 0}}}
    params_file.write_text(yaml.safe_dump(params), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"datasets\.digits\.test"):
        read_params(params_file)
