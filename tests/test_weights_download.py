"""Published weights are fetched once, checked, and refused in training unless right."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import MakeExperiment, digits_plan, from_array, learnable_images
from torchvision.models import ShuffleNet_V2_X0_5_Weights, get_model
from training_process import train_here

from photofinish.config.networks import (
    InitialWeights,
    PublishedWeights,
    WeightsPlan,
)
from photofinish.data.split import split
from photofinish.errors import UserError
from photofinish.files import sha256_of_file
from photofinish.machine.fingerprint import CpuTarget
from photofinish.models.weights_download import download_weights
from photofinish.results import records
from photofinish.results.learned import load_network
from photofinish.runs.run import Run

SHUFFLENET = PublishedWeights(model="shufflenet_v2_x0_5", weights="IMAGENET1K_V1")
ASKING = {"name": "shufflenet_v2_x0_5", "weights": "IMAGENET1K_V1"}


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_ROOT", raising=False)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file in torch.hub's cache, whose name has its sha256."""
    folder = tmp_path_factory.mktemp("hub") / "checkpoints"
    folder.mkdir()
    torch.manual_seed(3)
    torch.save(get_model("shufflenet_v2_x0_5", weights=None).state_dict(), folder / "new.pth")
    return (folder / "new.pth").rename(
        folder / f"shufflenet_v2_x0_5-{sha256_of_file(folder / 'new.pth')[:8]}.pth"
    )


@pytest.fixture
def plan(published: Path, monkeypatch: pytest.MonkeyPatch) -> WeightsPlan:
    monkeypatch.setattr("torch.hub._hub_dir", str(published.parent.parent))
    name_address(f"http://127.0.0.1:9/models/{published.name}", monkeypatch)
    return WeightsPlan(experiments={"scratch": None, "fine": SHUFFLENET, "finer": SHUFFLENET})


def name_address(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = ShuffleNet_V2_X0_5_Weights.IMAGENET1K_V1
    monkeypatch.setattr(weights, "_value_", replace(weights.value, url=url))


def written(folder: Path) -> InitialWeights:
    return InitialWeights.model_validate_json((folder / "weights.json").read_bytes())


def test_each_experiment_has_a_folder_with_its_weights(
    plan: WeightsPlan, published: Path, tmp_path: Path
) -> None:
    download_weights(plan, tmp_path / "weights")
    names = {
        path.name: sorted(file.name for file in path.iterdir())
        for path in (tmp_path / "weights").iterdir()
    }
    with_file = [published.name, "weights.json"]
    assert names == {"scratch": ["weights.json"], "fine": with_file, "finer": with_file}
    assert written(tmp_path / "weights/scratch").published is None
    fine = written(tmp_path / "weights/fine").published
    assert fine is not None
    assert (fine.model, fine.weights, fine.file) == (
        "shufflenet_v2_x0_5",
        "IMAGENET1K_V1",
        published.name,
    )
    assert fine.sha256 == sha256_of_file(published)


def test_a_file_with_another_sha256_is_refused(
    plan: WeightsPlan, published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = tmp_path / "shufflenet_v2_x0_5-00000000.pth"
    damaged.write_bytes(published.read_bytes())
    monkeypatch.setattr("torch.hub._hub_dir", str(tmp_path / "hub"))
    name_address(damaged.as_uri(), monkeypatch)
    with pytest.raises(UserError, match=r"IMAGENET1K_V1 of shufflenet_v2_x0_5: .*TORCH_HOME"):
        download_weights(plan, tmp_path / "weights")


@pytest.fixture
def weights(plan: WeightsPlan, tmp_path: Path) -> Path:
    download_weights(plan, tmp_path / "weights")
    return tmp_path / "weights" / "fine"


@pytest.fixture(scope="module")
def coloured_split(tmp_path_factory: pytest.TempPathFactory) -> Path:
    grey = learnable_images(60, side=32)
    images = np.repeat(grey.inputs, 3, axis=1)
    folder = tmp_path_factory.mktemp("coloured")
    split(digits_plan(), from_array(images, grey.labels, grey.class_names), folder)
    return folder


def test_training_starts_from_them_and_its_record_says_so(
    weights: Path,
    published: Path,
    coloured_split: Path,
    cpu_host: CpuTarget,
    make_experiment: MakeExperiment,
    tmp_path: Path,
) -> None:
    experiment = make_experiment(model=ASKING, epochs=1, optimizer={"name": "sgd", "lr": 1e-12})
    run = Run(
        "fine",
        "cpu",
        experiment,
        cpu_host,
        coloured_split,
        tmp_path / "out" / "fine" / "cpu",
        weights,
    )
    train_here(run)
    record = records.read_training(run.out / records.MODEL)
    assert isinstance(record, records.TrainingRecord)
    assert record.published_weights_sha256 == sha256_of_file(published)
    network = load_network(run.out / records.MODEL, record)
    started = torch.load(published, weights_only=True)
    assert torch.allclose(
        network.state_dict()["conv1.0.weight"], started["conv1.0.weight"], atol=1e-6
    )
