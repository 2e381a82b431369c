"""What computes on the CPU does so with the quicker layers, in training as in what is looked at beside it."""

from __future__ import annotations

import numpy as np
import torch
from conftest import MakeExperiment, MakeTrainer
from torch import nn

from photofinish.measuring.first_step import first_step
from photofinish.models.convolution import LastPositionConv2d
from photofinish.models.pooling import HalvingMaxPool2d
from photofinish.models.quick import quicken

CPU = torch.device("cpu")


def small_network() -> nn.Sequential:
    return nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(1, 4, 4), nn.Flatten(), nn.Linear(4, 3))


def kinds(network: nn.Module) -> list[type[nn.Module]]:
    return [type(module) for module in network.children()]


QUICK = [HalvingMaxPool2d, LastPositionConv2d, nn.Flatten, nn.Linear]


def test_the_trainers_network_has_them(make_trainer: MakeTrainer, make_experiment: MakeExperiment) -> None:
    assert kinds(make_trainer(make_experiment(), small_network()).network) == QUICK


def test_so_has_the_one_whose_first_step_is_compared_between_devices() -> None:
    network = small_network()
    batch = torch.rand(2, 1, 8, 8), torch.tensor([0, 1])
    first_step(network, batch, CPU, "fp32", np.array([0, 1]), seed=0)
    assert kinds(network) == QUICK


def test_on_an_accelerator_pytorchs_own_stay() -> None:
    network = small_network()
    before = kinds(network)
    quicken(network, torch.device("cuda"))
    assert kinds(network) == before
