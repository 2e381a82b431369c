"""The optimisers that leave PyTorch's compiler alone do what PyTorch's own do, bit for bit."""

from __future__ import annotations

import copy
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from photofinish.training.eager_optimizers import eager

KINDS: list[tuple[type[Optimizer], dict[str, Any]]] = [
    (SGD, {"lr": 0.1}),
    (SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.01}),
    (SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    (Adam, {"lr": 0.01, "weight_decay": 0.1}),
    (AdamW, {"lr": 0.01, "betas": (0.7, 0.98)}),
    (SGD, {"lr": 0.1, "momentum": 0.9, "fused": True}),
    (Adam, {"lr": 0.01, "fused": True}),
]
STEPS = 5


class Training:
    def __init__(self, kind: type[Optimizer], settings: dict[str, Any]) -> None:
        torch.manual_seed(0)
        self.network = nn.Linear(4, 3)
        self.optimizer = kind(self.network.parameters(), **settings)

    def step(self, number: int) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        images = torch.linspace(-1, 1, 32).view(8, 4) * (number + 1)
        self.network(images).square().mean().backward()
        self.optimizer.step()


@pytest.mark.parametrize(("kind", "settings"), KINDS)
def test_each_step_has_the_bits_of_pytorchs_own(kind: type[Optimizer], settings: dict[str, Any]) -> None:
    ours, theirs = Training(eager(kind), settings), Training(kind, settings)
    for number in range(STEPS):
        ours.step(number)
        theirs.step(number)
        assert torch.equal(ours.network.weight, theirs.network.weight)
    assert ours.network.weight.requires_grad
    assert torch.is_grad_enabled()


@pytest.mark.parametrize(("kind", "settings"), KINDS)
def test_what_it_learned_so_far_goes_on_in_pytorchs_own(kind: type[Optimizer], settings: dict[str, Any]) -> None:
    ours, theirs = Training(eager(kind), settings), Training(kind, settings)
    ours.step(0)
    theirs.network.load_state_dict(ours.network.state_dict())
    theirs.optimizer.load_state_dict(copy.deepcopy(ours.optimizer.state_dict()))
    for training in (ours, theirs):
        training.step(1)
    assert torch.equal(ours.network.weight, theirs.network.weight)


def test_a_step_is_not_reported_to_the_profiler(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(torch.autograd.profiler, "record_function", told.append)
    training = Training(eager(SGD), {"lr": 0.1})
    training.network(torch.ones(1, 4)).sum().backward()
    training.optimizer.step()
    assert not told


def test_pytorchs_own_class_stays_as_it_is() -> None:
    before = dict(vars(Optimizer))
    Training(eager(SGD), {"lr": 0.1}).step(0)
    assert dict(vars(Optimizer)) == before
    assert eager(SGD).zero_grad is not SGD.zero_grad


TRAIN_AND_SUMMARISE = """
import sys
import torch
from torch import nn
from photofinish.training.optimisation import Schedule, build_optimizer
from photofinish.params.training import Experiment
from photofinish.training_stage.summary import summarise

network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
for optimizer in ({"name": "sgd", "momentum": 0.9}, {"name": "adam"}, {"name": "adamw"}):
    for schedule in ({"name": "constant"}, {"name": "cosine"}, {"name": "one_cycle", "max_lr": 0.1}):
        experiment = Experiment.model_validate({
            "dataset": "small", "model": {"name": "linear"}, "optimizer": {"lr": 0.1, **optimizer},
            "schedule": schedule, "input": {"name": "resident"}, "precision": "fp32", "epochs": 3, "batch_size": 2,
            "seed": 0,
        })
        ours = build_optimizer(experiment.optimizer, network.parameters())
        rates = Schedule(experiment.schedule, ours, epochs=3, steps_per_epoch=4)
        network(torch.ones(2, 1, 8, 8)).sum().backward()
        ours.step()
        ours.zero_grad(set_to_none=True)
        rates.batch_ended()
        rates.epoch_ended(0.5)
        ours.load_state_dict(ours.state_dict())
summarise(network, (1, 8, 8))
print("torch._dynamo" in sys.modules)
"""


def test_no_training_imports_pytorchs_compiler_which_would_take_seconds() -> None:
    ran = subprocess.run([sys.executable, "-c", TRAIN_AND_SUMMARISE], capture_output=True, text=True, check=False)
    assert ran.stdout == "False\n", ran.stderr
