"""Trainers whose steps are recorded, without a GPU: for the tests of recorded steps.

A recorder of operations stands in for CUDA graphs (see recorder.py), and the CPU for a GPU. The
optimizers are fused, have their state from the start and read learning rates from tensors.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from conftest import MakeExperiment
from recorder import OperationRecorder
from torch import nn

from photofinish.data import PartName
from photofinish.measure.attribution import measure_attribution, time_steps
from photofinish.measure.in_turns import Budget
from photofinish.models.registry import build_model
from photofinish.results.measurements import StepAttribution
from photofinish.training import graphs, learning_rates, optimizer
from photofinish.training.batches import Batches, Normaliser, Part
from photofinish.training.graphs import GraphedSteps
from photofinish.training.input_paths import make_batches
from photofinish.training.torch_device import CPU
from photofinish.training.trainer import Trainer

IMAGES, BATCH = 16, 3
"""Five whole batches and a batch of one sample.

Two graphs hold two batches each, and a third the last two.
"""
LOADER = {"name": "loader", "workers": 0}
"""Input whose batches are recorded singly."""
SGD, ADAM, ADAMW = ({"name": name, "lr": 0.02} for name in ("sgd", "adam", "adamw"))
DAMPED = SGD | {"momentum": 0.9, "dampening": 0.5}
MakeJob = Callable[..., Trainer]


@pytest.fixture(name="recorder")
def stand_in(monkeypatch: pytest.MonkeyPatch) -> OperationRecorder:
    made = OperationRecorder()
    monkeypatch.setattr(graphs, "recorder_of", lambda _device: made)
    for module in (learning_rates, optimizer):
        monkeypatch.setattr(module, "is_accelerator", lambda _device: True)
    monkeypatch.setattr(graphs, "TRIED_STEPS", 2)
    torch.set_num_threads(1)
    return made


@pytest.fixture(name="make_job")
def job_maker(
    recorder: OperationRecorder,  # noqa: ARG001
    make_experiment: MakeExperiment,
    monkeypatch: pytest.MonkeyPatch,
) -> MakeJob:
    """A trainer on noise, by the settings of an experiment: `make_job(model={...})`."""

    def make(
        network: nn.Module | None = None,
        *,
        shape: tuple[int, ...] = (1, 6, 6),
        images: int = IMAGES,
        **settings: Any,
    ) -> Trainer:
        experiment = make_experiment(
            **{"batch_size": BATCH, "epochs": 2, "optimizer": SGD, **settings}
        )
        monkeypatch.setattr(
            graphs, "MOST_BYTES", 2 * 4 * experiment.batch_size * int(np.prod(shape))
        )
        random = np.random.default_rng(0)

        def batches(name: PartName, count: int) -> Batches:
            pixels = random.integers(0, 256, (count, *shape), np.uint8)
            part = Part(name, pixels, np.arange(count) % 3, Normaliser((0.5,), (0.25,)))
            return make_batches(experiment, part, CPU)

        network = copy.deepcopy(network) if network else build_model(experiment.model, shape, 3, 0)
        training, validation = batches("train", images), batches("validation", 5)
        monitored = experiment.monitored_metric()
        return Trainer(
            experiment, network, training, validation, CPU, classes=3, monitored=monitored
        )

    return make


def attributed(trainer: Trainer, images: int = 2) -> StepAttribution:
    """Take an epoch's steps apart, beside steps on another batch."""
    timed = time_steps(trainer, 0.01, 0.0, images)
    return measure_attribution(trainer, timed, images, 0.01, Budget.of(0.0))


def warmed(trainer: Trainer) -> Trainer:
    trainer.prepare()
    return trainer


def trained(trainer: Trainer) -> Trainer:
    list(warmed(trainer).epochs())
    return trainer


def assert_recorded(trainer: Trainer) -> None:
    assert isinstance(trainer.steps, GraphedSteps), trainer.steps.why
    assert trainer.steps.at_once == (1 if trainer.experiment.input.name == "loader" else 2)
