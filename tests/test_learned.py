"""Trained networks as files: with shared weights, for each seed, and without process groups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from conftest import MakeExperiment, MakeResult
from result_files import trained
from safetensors.torch import load as from_safetensors
from torch import nn

from photofinish.config.experiment import Experiment
from photofinish.errors import UserError
from photofinish.files import sha256_of_bytes, write_bytes_atomically
from photofinish.models.registry import build_model
from photofinish.results import records
from photofinish.results.learned import load_network, rebuilt, seed_weights, weights_of
from photofinish.training.world import DistributedWorld

SHAPE, CLASSES = (3, 32, 32), 3


@pytest.fixture
def experiment(make_experiment: MakeExperiment) -> Experiment:
    return make_experiment(model={"name": "resnet18"})


@pytest.fixture
def adapted(experiment: Experiment, tmp_path: Path) -> Iterator[nn.Module]:
    """Network as a rank holds it, with synchronized BatchNorm."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    team = DistributedWorld(0, 1, torch.device("cpu"))
    team.devices = (torch.device("cuda", 0),)
    yield team.adapt(build_model(experiment.model, SHAPE, CLASSES, seed=7))
    dist.destroy_process_group()


def test_a_network_of_a_distributed_training_is_rebuilt_without_its_process_group(
    experiment: Experiment, adapted: nn.Module, tmp_path: Path
) -> None:
    assert any(isinstance(module, nn.SyncBatchNorm) for module in adapted.modules())
    plain = rebuilt(experiment, SHAPE, CLASSES, adapted.state_dict())
    assert str(plain) == str(build_model(experiment.model, SHAPE, CLASSES, seed=0))
    torch.save(plain, tmp_path / "model.pth")
    loaded = torch.load(tmp_path / "model.pth", weights_only=False)
    assert not any(isinstance(module, nn.SyncBatchNorm) for module in loaded.modules())
    assert all(
        torch.equal(tensor, adapted.state_dict()[name])
        for name, tensor in loaded.state_dict().items()
    )


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


def test_further_seeds_are_read_if_the_experiment_has_several(
    make_result: MakeResult, tmp_path: Path
) -> None:
    result = trained(make_result)
    once = result.record.experiment
    run = records.SeedRun(seed=1, weights_sha256="0" * 64, history=())
    records.write_record(tmp_path / "seeds.json", records.FurtherSeeds(runs=(run,)))
    assert records.read_seeds(tmp_path, once.model_copy(update={"seeds": 2})) == (run,)
    assert records.read_seeds(tmp_path, once) == ()
