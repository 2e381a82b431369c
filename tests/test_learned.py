"""Trained networks as files: with shared weights, and for each seed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from conftest import MakeResult
from result_files import trained
from safetensors.torch import load as from_safetensors
from torch import nn

from photofinish.errors import UserError
from photofinish.files import sha256_of_bytes, write_bytes_atomically
from photofinish.models.registry import build_model
from photofinish.results import records
from photofinish.results.learned import load_network, seed_weights, weights_of


def test_tied_weights_and_views_are_written_for_each_layer() -> None:
    network = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    network[1].weight = network[0].weight
    network.register_buffer("table", torch.arange(10.0))
    network.register_buffer("end_of_table", network.get_buffer("table")[5:])
    written = from_safetensors(weights_of(network))
    assert {name: tensor.tolist() for name, tensor in written.items()} == {
        name: tensor.tolist() for name, tensor in network.state_dict().items()
    }


def test_a_further_seeds_network_has_its_own_file_which_is_checked(
    make_result: MakeResult, tmp_path: Path
) -> None:
    record = trained(make_result).record
    data = weights_of(
        build_model(record.experiment.model, record.image_shape, len(record.class_names), seed=5)
    )
    file = tmp_path / records.SEEDS / "5.safetensors"
    assert seed_weights(tmp_path, 5) == file
    write_bytes_atomically(file, data)
    run = records.SeedRun(seed=5, weights_sha256=sha256_of_bytes(data), history=())
    assert weights_of(load_network(tmp_path, record, run)) == data
    file.write_bytes(data[:-1])
    with pytest.raises(UserError, match=r"5\.safetensors is damaged"):
        load_network(tmp_path, record, run)
