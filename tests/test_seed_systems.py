"""Two tutorials' published figures are reproduced on real data.

The tests skip if ../shared/datasets lacks the files, in torchvision's layout.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from conftest import ROOT

from photofinish.config.datasets import DatasetPlan
from photofinish.config.loader import read_params
from photofinish.data.packed import PackedSplit
from photofinish.data.raw_data import RawData, read_raw
from photofinish.data.sources import download
from photofinish.data.split import split
from photofinish.models.registry import build_model
from photofinish.training.batches import part_of
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


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> RawData:
    """Read MNIST once for both tutorials."""
    folder = tmp_path_factory.mktemp("raw")
    shutil.copytree(REAL_DATA / "MNIST", folder / "root/MNIST")
    plan = plan_of("mnist-linear")
    dataset = plan.dataset.model_copy(update={"root": str(folder / "root")})
    plan = plan.model_copy(update={"dataset": dataset})
    download(plan, folder / "raw")
    return read_raw(plan, folder / "raw")


def plan_of(example: str) -> DatasetPlan:
    ((name, dataset),) = read_params(ROOT / "examples" / f"{example}.yaml").datasets.items()
    return DatasetPlan(name=name, dataset=dataset, local_files=None)


def packed(example: str, raw: RawData, folder: Path) -> PackedSplit:
    """Pack the data set of an example."""
    split(plan_of(example), raw, folder / "split")
    return PackedSplit(folder / "split")


def accuracies_on_the_test_images(example: str, name: str, data: PackedSplit) -> list[float]:
    """Train five epochs, and return the accuracy on the test images after each."""
    experiment = read_params(ROOT / "examples" / f"{example}.yaml").experiments[name]
    experiment = experiment.model_copy(update={"epochs": 5})
    shape, classes = data.manifest.shape, len(data.manifest.class_names)
    configure_torch(CPU, experiment.precision, threads=1)
    network = build_model(experiment.model, shape, classes, experiment.seed)
    training = make_batches(experiment, part_of(data, "train"), CPU)
    test = make_batches(experiment, part_of(data, "test"), CPU)
    trainer = Trainer(experiment, network, training, test, CPU)
    return [metrics.validation_accuracy or 0.0 for metrics, _ in trainer.epochs()]


def test_mnist_linear_learns_as_fast_as_in_its_tutorial(raw: RawData, tmp_path: Path) -> None:
    data = packed("mnist-linear", raw, tmp_path)
    assert data.manifest.counts == {"train": 60_000, "test": 10_000}
    assert (data.manifest.mean, data.manifest.std) == ((0.1307,), (0.3081,))
    measured = accuracies_on_the_test_images("mnist-linear", "mnist-linear", data)
    assert measured == pytest.approx(MNIST_LINEAR_ACCURACY, abs=0.005)


def test_mnist_mlp_reaches_the_known_accuracy(raw: RawData, tmp_path: Path) -> None:
    data = packed("mnist-mlp", raw, tmp_path)
    measured = accuracies_on_the_test_images("mnist-mlp", "mnist-mlp-resident", data)
    assert max(measured) >= MNIST_MLP_ACCURACY
