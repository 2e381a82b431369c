"""Two tutorials' published figures are reproduced on real data.

The tests skip if ../shared/datasets lacks the files, in torchvision's layout.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ROOT
from torch import nn

from photofinish.config.datasets import DatasetPlan
from photofinish.config.experiment import Experiment
from photofinish.config.loader import read_params
from photofinish.data import PartName
from photofinish.data.packed import PackedSplit
from photofinish.data.raw_data import read_raw
from photofinish.data.sources import download
from photofinish.data.split import split
from photofinish.models.registry import build_model
from photofinish.training.batches import Normaliser, Part
from photofinish.training.input_paths import make_batches
from photofinish.training.torch_device import CPU, configure_torch
from photofinish.training.trainer import Trainer

REAL_DATA = ROOT.parent / "shared" / "datasets"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (REAL_DATA / "MNIST" / "raw").is_dir(), reason=f"no real data in {REAL_DATA}"
    ),
]

# Test accuracy after each of the first five epochs, as the tutorial behind mnist-linear printed it.
MNIST_LINEAR_ACCURACY = [0.8838, 0.8988, 0.9016, 0.9052, 0.9074]
# 784-30-10 with sigmoids at its best: M. Nielsen, Neural Networks and Deep Learning, chapter 1.
MNIST_MLP_ACCURACY = 0.9542

Pack = Callable[[str], PackedSplit]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    """Return a function that packs an example's data set, once each."""
    done: dict[str, PackedSplit] = {}

    def pack(example: str) -> PackedSplit:
        ((name, dataset),) = read_params(example_file(example)).datasets.items()
        if example not in done:
            folder = tmp_path_factory.mktemp(name)
            shutil.copytree(REAL_DATA / dataset.source, folder / "root" / dataset.source)
            dataset = dataset.model_copy(update={"root": str(folder / "root")})
            plan = DatasetPlan(name=name, dataset=dataset, local_files=None)
            download(plan, folder / "raw")
            split(plan, read_raw(plan, folder / "raw"), folder / "split")
            done[example] = PackedSplit(folder / "split")
        return done[example]

    return pack


def example_file(example: str) -> Path:
    return ROOT / "examples" / f"{example}.yaml"


def experiment_of(example: str, name: str, *, epochs: int) -> Experiment:
    return (
        read_params(example_file(example)).experiments[name].model_copy(update={"epochs": epochs})
    )


def accuracies_on_the_test_images(experiment: Experiment, packed: PackedSplit) -> list[float]:
    """Train, and return the accuracy on the test images after each epoch."""
    manifest = packed.manifest
    configure_torch(CPU, experiment.precision, threads=1)
    network = build_model(
        experiment.model, manifest.shape, len(manifest.class_names), experiment.seed
    )
    normalise = Normaliser(manifest.mean, manifest.std)

    def part(name: PartName) -> Part:
        return Part(name, packed.images(name), packed.labels(name), normalise)

    training, validation = (
        make_batches(experiment, part(name), CPU) for name in ("train", "validation")
    )
    trainer = Trainer(experiment, network, training, validation, CPU)
    return [accuracy(trainer.network, part("test")) for _epoch in trainer.epochs()]


@torch.inference_mode()
def accuracy(network: nn.Module, test: Part) -> float:
    images = test.normalise(torch.from_numpy(np.array(test.images)))
    predicted = torch.cat([network(part).argmax(dim=1) for part in images.split(1000)])
    return float((predicted.numpy() == test.labels).mean())


def test_mnist_linear_learns_as_fast_as_in_its_tutorial(packed: Pack) -> None:
    data = packed("mnist-linear")
    assert data.manifest.counts == {"train": 50_000, "validation": 10_000, "test": 10_000}
    assert (data.manifest.mean, data.manifest.std) == ((0.1307,), (0.3081,))
    measured = accuracies_on_the_test_images(
        experiment_of("mnist-linear", "mnist-linear", epochs=5), data
    )
    assert measured == pytest.approx(MNIST_LINEAR_ACCURACY, abs=0.005)


def test_mnist_mlp_reaches_the_known_accuracy(packed: Pack) -> None:
    experiment = experiment_of("mnist-mlp", "mnist-mlp-resident", epochs=5)
    assert max(accuracies_on_the_test_images(experiment, packed("mnist-mlp"))) >= MNIST_MLP_ACCURACY
