"""A training's data and networks: whose mistakes are named, and which batches are shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import MakeExperiment

from photofinish.data.packed import PackedSplit
from photofinish.errors import ConfigError
from photofinish.machine.fingerprint import CpuTarget
from photofinish.runs.run import Run
from photofinish.runs.setup import Setup
from photofinish.training.torch_device import CPU
from photofinish.training.world import World


class _OneOfTwo(World):
    rank, size = 1, 2


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({"name": "lenet"}, r"experiments\.tiny\.model lenet .* pixel left .* those of datasets\.small$"),
        ({"name": "cnn", "channels": (4, 4, 4, 4)}, r"experiments\.tiny\.model cnn .* datasets\.small$"),
        ({"name": "resnet18"}, r"experiments\.tiny\.model resnet18 takes images of 3 channels.* datasets\.small$"),
    ],
)
def test_a_network_that_does_not_fit_the_images_is_a_mistake_of_its_experiment(
    make_experiment: MakeExperiment, cpu_host: CpuTarget, packed_split: PackedSplit, model: dict[str, Any], said: str
) -> None:
    experiment = make_experiment(model=model)
    run = Run("tiny", "cpu", experiment, cpu_host, packed_split.folder, Path())
    with pytest.raises(ConfigError, match=said):
        Setup(run, CPU, World(CPU)).new_trainer()


@pytest.mark.parametrize("augmentation", [{}, {"flip": 0.5, "crop_padding": 2}], ids=["as they are", "augmented"])
def test_the_first_batch_is_shown_whole_where_a_process_trains_on_a_share_of_it(
    make_experiment: MakeExperiment, cpu_host: CpuTarget, packed_split: PackedSplit, augmentation: dict[str, Any]
) -> None:
    experiment = make_experiment(augmentation=augmentation)
    run = Run("tiny", "cpu", experiment, cpu_host, packed_split.folder, Path())
    alone, shared = Setup(run, CPU, World(CPU)), Setup(run, CPU, _OneOfTwo(CPU))
    whole, shown, share = (
        next(iter(batches.train_batches(0))) for batches in (alone.training, shared.whole_batches(), shared.training)
    )
    for tensor, expected in zip(shown, whole, strict=True):
        assert torch.equal(tensor, expected)
    assert len(share[1]) == len(whole[1]) / 2
    assert alone.whole_batches() is alone.training
