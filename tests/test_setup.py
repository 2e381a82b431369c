"""A network that does not fit the data is an error in its experiment."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import MakeExperiment

from photofinish.data.packed import PackedSplit
from photofinish.errors import ConfigError
from photofinish.machine.fingerprint import CpuTarget
from photofinish.runs.run import Run
from photofinish.runs.setup import Setup
from photofinish.training.torch_device import CPU
from photofinish.training.world import World


def test_a_network_that_does_not_fit_the_images_is_an_error_in_its_experiment(
    make_experiment: MakeExperiment,
    cpu_host: CpuTarget,
    packed_split: PackedSplit,
) -> None:
    experiment = make_experiment(model={"name": "lenet"})
    run = Run("tiny", "cpu", experiment, cpu_host, packed_split.folder, Path())
    message = r"experiments\.tiny\.model lenet can't take .* datasets\.small$"
    with pytest.raises(ConfigError, match=message):
        Setup(run, CPU, World(CPU)).new_trainer()
