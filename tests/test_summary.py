"""The summary of a network: its modules, what they make of an image, and totals that can be checked by hand."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn
from torchvision.models import get_model

from photofinish.models.registry import build_model, count_parameters
from photofinish.params.networks import MlpModel
from photofinish.runs.views import summarise


class UsesOneModuleTwice(nn.Module):
    """And never the other one."""

    def __init__(self) -> None:
        super().__init__()
        self.pool, self.unused = nn.MaxPool2d(2), nn.Linear(3, 3)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        scaled: torch.Tensor = self.pool(self.pool(images)) * self.scale
        return scaled.flatten(1)


def rows(summary: str) -> list[list[str]]:
    """The cells of the table, its header left out."""
    table, _, _ = summary.partition("\n\n")
    return [re.split(r"\s{2,}", line.strip()) for line in table.splitlines()[1:]]


def total(summary: str, name: str) -> int:
    found = re.search(rf"^{name}\s+([\d,]+)", summary, re.MULTILINE)
    assert found, summary
    return int(found[1].replace(",", ""))


def test_each_layer_has_its_type_its_output_and_its_parameters() -> None:
    summary = summarise(build_model(MlpModel(name="mlp", hidden=(32,)), (1, 28, 28), 10, seed=0), (1, 28, 28))
    assert rows(summary) == [
        ["0", "Flatten", "784", "0"],
        ["1", "Linear", "32", "25,120"],
        ["2", "ReLU", "32", "0"],
        ["3", "Linear", "10", "330"],
    ]
    assert total(summary, "parameters") == total(summary, "trainable") == 25_450
    assert total(summary, "multiply-adds") == 784 * 32 + 32 * 10
    assert "0.10 MB" in summary


def test_a_convolution_counts_a_multiply_add_for_each_weight_at_each_place() -> None:
    summary = summarise(nn.Sequential(nn.Conv2d(3, 8, 5, stride=2, padding=2), nn.Flatten()), (3, 32, 32))
    assert rows(summary)[0] == ["0", "Conv2d", "8x16x16", f"{8 * 3 * 25 + 8}"]
    assert total(summary, "multiply-adds") == 8 * 3 * 25 * 16 * 16


def test_a_module_used_twice_shows_both_outputs_and_an_unused_one_none() -> None:
    summary = summarise(UsesOneModuleTwice(), (3, 8, 8))
    assert rows(summary) == [
        ["(network)", "UsesOneModuleTwice", "12", "1"],
        ["pool", "MaxPool2d", "3x4x4, 3x2x2", "0"],
        ["unused", "Linear", "-", "12"],
    ]


def test_parameters_that_are_shared_or_frozen_are_counted_once_and_apart() -> None:
    one, other = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    other.weight = one.weight
    frozen = nn.Linear(4, 2)
    frozen.requires_grad_(False)
    summary = summarise(nn.Sequential(nn.Flatten(), one, other, frozen), (1, 2, 2))
    assert (total(summary, "parameters"), total(summary, "trainable")) == (26, 16)


@pytest.mark.parametrize(
    ("name", "side", "multiply_adds_in_millions"),
    [("resnet18", 224, 1_814), ("mobilenet_v3_small", 224, 56), ("vit_b_32", 224, 4_410), ("regnet_x_400mf", 224, 415)],
)
def test_torchvisions_networks_have_the_operations_their_authors_give(
    name: str, side: int, multiply_adds_in_millions: int
) -> None:
    network = get_model(name, weights=None)
    summary = summarise(network, (3, side, side))
    assert total(summary, "parameters") == count_parameters(network)
    assert total(summary, "multiply-adds") / 1e6 == pytest.approx(multiply_adds_in_millions, rel=0.03)
    assert sum(int(row[-1].replace(",", "")) for row in rows(summary)) == count_parameters(network)


def test_the_network_stays_as_it_is_and_no_random_number_is_drawn() -> None:
    network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Flatten(), nn.Linear(144, 3))
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    random_state = torch.get_rng_state()
    assert summarise(network, (1, 8, 8)) == summarise(network, (1, 8, 8))
    assert network.training
    assert not network[0]._forward_hooks
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random_state)


def test_a_network_that_has_only_shapes_takes_no_memory_however_large() -> None:
    with torch.device("meta"):
        network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 224 * 224, 10**9, bias=False))
    assert total(summarise(network, (3, 224, 224)), "parameters") == 3 * 224 * 224 * 10**9
