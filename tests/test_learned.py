"""A trained network is handed on plain: nothing of the processes that trained it together goes with it."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from conftest import MakeExperiment
from torch import nn

from photofinish.models.registry import build_model
from photofinish.params.experiment import Experiment
from photofinish.results.learned import rebuilt
from photofinish.runs.views import summarise
from photofinish.training.teams import Ranks

SHAPE, CLASSES = (3, 32, 32), 3


@pytest.fixture
def experiment(make_experiment: MakeExperiment) -> Experiment:
    return make_experiment(model={"name": "resnet18"})


@pytest.fixture
def adapted(experiment: Experiment, tmp_path: Path) -> Iterator[nn.Module]:
    """As one process of several has it; torch converts it on the CPU too, and only refuses to run it there."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    team = Ranks(0, 1, torch.device("cpu"))
    team.devices = (torch.device("cuda", 0),)
    yield team.adapt(build_model(experiment.model, SHAPE, CLASSES, seed=7))
    dist.destroy_process_group()


def test_a_network_trained_by_several_processes_is_summarised_and_pickled_as_one_trained_alone(
    experiment: Experiment, adapted: nn.Module, tmp_path: Path
) -> None:
    assert any(isinstance(module, nn.SyncBatchNorm) for module in adapted.modules())
    plain = rebuilt(experiment, SHAPE, CLASSES, adapted.state_dict())
    assert summarise(plain, SHAPE) == summarise(build_model(experiment.model, SHAPE, CLASSES, seed=0), SHAPE)
    torch.save(plain, tmp_path / "model.pth")
    loaded = torch.load(tmp_path / "model.pth", weights_only=False)
    assert not any(isinstance(module, nn.SyncBatchNorm) for module in loaded.modules())
    assert all(torch.equal(tensor, adapted.state_dict()[name]) for name, tensor in loaded.state_dict().items())


def test_torch_can_not_pickle_what_holds_a_process_group(adapted: nn.Module) -> None:
    with pytest.raises(TypeError, match="cannot pickle"):
        torch.save(adapted, io.BytesIO())
