"""A run that resumes from a checkpoint ends with the bits of an uninterrupted one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import MakeExperiment, MakeTrainer, network_with_state

from photofinish.config.experiment import Experiment
from photofinish.training.checkpoint import CheckpointStore
from photofinish.training.trainer import Trainer

EPOCHS = 4
SGD, ADAM, ADAMW = (
    {"name": "sgd", "lr": 0.1, "momentum": 0.9},
    {"name": "adam", "lr": 0.01},
    {"name": "adamw", "lr": 0.01},
)
CASES: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (SGD, {"name": "constant"}, "fp32"),
    (ADAM, {"name": "step", "step_size": 2}, "tf32"),
    (ADAMW, {"name": "cosine"}, "bf16"),
    (SGD, {"name": "one_cycle", "max_lr": 0.1}, "fp16"),
    (ADAM, {"name": "reduce_on_plateau", "patience": 0, "factor": 0.5}, "fp16"),
    (ADAMW, {"name": "one_cycle", "max_lr": 0.1}, "fp32"),
]
"""Each optimizer, schedule and precision."""


def resumed(trainer: Trainer, store: CheckpointStore) -> Trainer:
    """Continue as in another process, where the random stream differs."""
    state = store.load_latest(pytest.fail)
    assert state is not None
    trainer.load_state_dict(state)
    torch.rand(13)
    trainer.prepare()
    list(trainer.epochs())
    return trainer


@pytest.mark.parametrize(("optimizer", "schedule", "precision"), CASES, ids=str)
def test_a_run_resumed_after_any_epoch_ends_with_the_same_bits(
    make_trainer: MakeTrainer,
    make_experiment: MakeExperiment,
    tmp_path: Path,
    optimizer: dict[str, Any],
    schedule: dict[str, Any],
    precision: str,
) -> None:
    experiment = make_experiment(
        optimizer=optimizer, schedule=schedule, precision=precision, epochs=EPOCHS
    )
    assert_resumes_exactly(make_trainer, experiment, tmp_path)


@pytest.mark.parametrize(
    "source",
    [{"name": "resident"}, {"name": "loader", "workers": 2, "persistent_workers": True}],
    ids=["resident", "persistent workers"],
)
def test_a_run_with_augmentation_resumes_exactly(
    make_trainer: MakeTrainer,
    make_experiment: MakeExperiment,
    tmp_path: Path,
    source: dict[str, Any],
) -> None:
    augmentation = {"flip": 0.5, "crop_padding": 2}
    assert_resumes_exactly(
        make_trainer,
        make_experiment(input=source, augmentation=augmentation, epochs=EPOCHS),
        tmp_path,
    )


def assert_resumes_exactly(
    make_trainer: MakeTrainer, experiment: Experiment, tmp_path: Path
) -> None:
    whole = make_trainer(experiment, network_with_state())
    stores = [CheckpointStore(tmp_path / str(epoch)) for epoch in range(1, EPOCHS + 1)]
    for metrics, _timing in whole.epochs():
        stores[metrics.epoch - 1].save(metrics.epoch, whole.state_dict())
    for store in stores:
        again = resumed(make_trainer(experiment, network_with_state()), store)
        assert again.progress.metrics == whole.progress.metrics
        assert again.steps_done == whole.steps_done
        for name, tensor in whole.network.state_dict().items():
            assert torch.equal(tensor, again.network.state_dict()[name]), name
