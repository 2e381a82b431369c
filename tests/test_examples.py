"""Every example passes `plan`, and each experiment unlike the others trains an epoch, on images like its own."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from conftest import ROOT, OwnFiles, digits_plan, from_array, learnable_images
from image_files import write_picture
from safetensors.torch import load_file
from torchvision.models import get_model
from training_process import NoTracker

from photofinish.config.base import read_plan
from photofinish.config.datasets import DatasetPlan, OwnDataset
from photofinish.config.experiment import Experiment, ExperimentPlan
from photofinish.config.networks import FetchedWeights, InitialWeights
from photofinish.config.reader import read_params
from photofinish.data.sources import download, read_raw
from photofinish.data.split import split
from photofinish.files import sha256_of_file
from photofinish.machine.fingerprint import CpuTarget
from photofinish.plan import write_plan
from photofinish.results import records
from photofinish.runs.run import Run
from photofinish.runs.train import train
from photofinish.tracking.client import Tracker
from photofinish.training.torch_device import CPU
from photofinish.training.world import World

FILES = sorted((ROOT / "examples").glob("*.yaml"))
CHANNELS_AND_SIDE = {"digits": (1, 8), "mnist": (1, 28), "fashion": (1, 28), "caltech101": (3, 32), "cifar10": (3, 32)}
IMAGES = 30  # no batch of one among them: ResNet's batch-norm could not learn from it


def experiments_unlike_each_other() -> list[tuple[str, str]]:
    """By their files. A batch of more images than there are is a batch of all."""
    unlike: dict[str, tuple[str, str]] = {}
    for path in FILES:
        for name, experiment in read_params(path).experiments.items():
            batch = {"batch_size": min(experiment.batch_size, IMAGES)}
            unlike.setdefault(experiment.model_copy(update=batch).model_dump_json(), (path.stem, name))
    return [*unlike.values()]


@pytest.fixture(autouse=True)
def project_folder(tmp_path: Path, own_files: OwnFiles, monkeypatch: pytest.MonkeyPatch) -> Path:  # noqa: ARG001
    folder = tmp_path / "project"
    shutil.copytree(ROOT / "examples", folder / "examples")
    rows = [f"{number}.png,{('cat', 'dog')[number % 2]}\n" for number in range(20)]
    for number in range(20):
        write_picture(tmp_path / "caltech101" / f"{number}.png", (number, 0, 0))
    (tmp_path / "caltech101" / "images.csv").write_text("".join(["path,label\n", *rows]), encoding="utf-8")
    monkeypatch.chdir(folder)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    return folder


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_example_passes_plan(path: Path) -> None:
    params = read_params(path)
    write_plan(params, Path("plan"), ROOT / "stages")
    planned = {file.stem: dict(read_plan(file, ExperimentPlan)) for file in Path("plan/experiments").glob("*.json")}
    for name, experiment in params.experiments.items():
        custom_code = planned[name].pop("custom_code")
        assert planned[name] == dict(experiment) | {"metrics": ()}
        assert bool(custom_code) == (".py:" in experiment.model.name)
    assert {read_plan(file, DatasetPlan).name for file in Path("plan/datasets").glob("*.json")} == set(params.datasets)


@pytest.mark.parametrize(("example", "name"), experiments_unlike_each_other())
def test_an_experiment_of_an_example_trains_an_epoch(example: str, name: str, cpu_host: CpuTarget) -> None:
    out, experiment = train_an_epoch(example, name, cpu_host)
    record = records.read_training(out)
    assert isinstance(record, records.Training)
    assert record.experiment == experiment.model_copy(update={"metrics": ()})
    assert [row.epoch for row in records.read_history(out)] == [1]


def test_a_tutorials_network_as_a_class_of_ones_own_learns_the_same_bits_as_the_built_in_one(
    cpu_host: CpuTarget,
) -> None:
    own, built_in = (
        {tensor.numpy().tobytes() for tensor in load_file(folder / records.WEIGHTS).values()}
        for folder, _ in (train_an_epoch("own-lenet", name, cpu_host) for name in ("own", "built-in"))
    )
    assert own == built_in


def train_an_epoch(example: str, name: str, host: CpuTarget) -> tuple[Path, Experiment]:
    """On images like its own; the folder of what it learned."""
    params = read_params(ROOT / "examples" / f"{example}.yaml")
    experiment = params.experiments[name].model_copy(update={"epochs": 1})
    dataset, data, weights = params.datasets[experiment.dataset], Path("split"), Path("weights")
    if isinstance(dataset, OwnDataset):
        plan = DatasetPlan(name=experiment.dataset, dataset=dataset, local_files=None)
        download(plan, Path("raw"))
        split(plan, read_raw(plan, Path("raw")), data)
    else:
        pack_images_like(experiment.dataset, data)
    if getattr(experiment.model, "weights", None):
        leave_weights(experiment, weights)
    run = Run(name, "cpu", experiment, host, data, Path("results", name, "cpu"), weights)
    train(run, CPU, World(CPU), cast(Tracker, NoTracker()), 0.0)
    return run.out / records.MODEL, experiment


def pack_images_like(dataset: str, folder: Path) -> None:
    channels, side = CHANNELS_AND_SIDE[dataset]
    grey = learnable_images(IMAGES, side=side)
    images = np.repeat(grey.read(np.arange(IMAGES)), channels, axis=1)
    split(digits_plan(), from_array(images, grey.labels, grey.class_names), folder)


def leave_weights(experiment: Experiment, folder: Path) -> None:
    """As `download-weights` does; made up, for there is nothing to download here."""
    folder.mkdir()
    model = experiment.model.name
    torch.save(get_model(model, weights=None).state_dict(), folder / "made-up.pth")
    fetched = FetchedWeights(
        model=model, weights="IMAGENET1K_V1", file="made-up.pth", sha256=sha256_of_file(folder / "made-up.pth")
    )
    (folder / "weights.json").write_text(InitialWeights(published=fetched).model_dump_json(), encoding="utf-8")
