"""Every example passes `plan`, and each experiment trains an epoch on samples of its shape."""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import PARTS, ROOT, CustomFiles, digits_plan, from_array, learnable_images
from image_files import write_picture
from safetensors.torch import load_file
from sklearn.datasets import load_iris
from training_process import train_here

from photofinish.config.base import read_plan
from photofinish.config.datasets import CustomDataset, DatasetPlan
from photofinish.config.experiment import Experiment, ExperimentPlan
from photofinish.config.loader import read_params
from photofinish.data.raw_data import read_raw
from photofinish.data.sources import download
from photofinish.data.split import split
from photofinish.machine.fingerprint import CpuTarget
from photofinish.planning.plan import write_plan
from photofinish.results import records
from photofinish.runs.run import Run

FILES = sorted((ROOT / "examples").glob("*.yaml"))
CHANNELS_AND_SIDE = {
    "digits": (1, 8),
    "mnist": (1, 28),
    "fashion": (1, 28),
    "caltech101": (3, 32),
    "caltech101-once": (3, 32),
    "cifar10": (3, 32),
}
IMAGES = 30  # leaves no batch of one image, which ResNet's batch norm could not train on


def different_experiments() -> list[tuple[str, str]]:
    """Return each experiment by its file. Batches larger than the data set count as one size.

    test_golden.py trains own-jobs.
    """
    different: dict[str, tuple[str, str]] = {}
    for path in FILES:
        if path.stem == "own-jobs":
            continue
        for name, experiment in read_params(path).experiments.items():
            batch = {"batch_size": min(experiment.batch_size, IMAGES)}
            text = experiment.model_copy(update=batch).model_dump_json()
            different.setdefault(text, (path.stem, name))
    return [*different.values()]


@pytest.fixture(autouse=True)
def project_folder(
    tmp_path: Path,
    custom_files: CustomFiles,  # noqa: ARG001
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    folder = tmp_path / "project"
    shutil.copytree(ROOT / "examples", folder / "examples")
    for number in range(20):
        write_picture(tmp_path / "caltech101" / f"{number}.png", (number, 0, 0))
    for part, numbers in zip(PARTS, (range(12), range(12, 16), range(16, 20)), strict=True):
        rows = [f"{number}.png,{('cat', 'dog')[number % 2]}" for number in numbers]
        text = "\n".join(["path,label", *rows, ""])
        (tmp_path / "caltech101" / f"{part}.csv").write_text(text, encoding="utf-8")
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_example_passes_plan(path: Path) -> None:
    params = read_params(path)
    write_plan(params, Path("plan"), ROOT / "stages")
    for name, experiment in params.experiments.items():
        plan = dict(read_plan(Path(f"plan/experiments/{name}.json"), ExperimentPlan))
        text = experiment.model_copy(update={"metrics": ()}).model_dump_json()
        custom_code = plan.pop("custom_code")
        assert (plan.pop("time_limit_seconds"), plan.pop("monitored")) == (None, None)
        assert any(".py" in file for file in custom_code) == (".py:" in text)
        assert plan == dict(experiment) | {"metrics": (), "time_limit": None}
    files = Path("plan/datasets").glob("*.json")
    assert {read_plan(file, DatasetPlan).name for file in files} == set(params.datasets)


@pytest.mark.parametrize(("example", "name"), different_experiments())
def test_an_experiment_of_an_example_trains_an_epoch(
    example: str, name: str, cpu_host: CpuTarget
) -> None:
    folder, experiment = train_an_epoch(example, name, cpu_host)
    record = records.read_training(folder)
    assert isinstance(record, records.TrainingRecord)
    assert record.experiment == experiment.model_copy(update={"metrics": ()})
    assert [row.epoch for row in records.read_history(folder)] == [1]


def test_a_custom_network_learns_the_same_bits_as_the_built_in_one(cpu_host: CpuTarget) -> None:
    weights = []
    for name in ("own", "built-in"):
        folder, _ = train_an_epoch("own-lenet", name, cpu_host)
        tensors = load_file(folder / records.WEIGHTS).values()
        weights.append({tensor.numpy().tobytes() for tensor in tensors})
    assert weights[0] == weights[1]


def train_an_epoch(example: str, name: str, host: CpuTarget) -> tuple[Path, Experiment]:
    """Train on samples of the right shape. Return the folder of the model and the experiment."""
    params = read_params(ROOT / "examples" / f"{example}.yaml")
    experiment = params.experiments[name].model_copy(update={"epochs": 1})
    dataset = params.datasets[experiment.dataset]
    data = Path("split")
    if isinstance(dataset, CustomDataset):
        plan = DatasetPlan(name=experiment.dataset, dataset=dataset, local_files=None)
        download(plan, Path("raw"))
        split(plan, read_raw(plan, Path("raw")), data)
    else:
        channels, side = CHANNELS_AND_SIDE[experiment.dataset]
        grey = learnable_images(IMAGES, side=side)
        images = np.repeat(grey.inputs[np.arange(IMAGES)], channels, axis=1)
        split(digits_plan(), from_array(images, grey.labels, grey.class_names), data)
    if getattr(experiment.model, "weights", None):  # test_weights_download.py trains from them
        model = experiment.model.model_copy(update={"weights": None})
        experiment = experiment.model_copy(update={"model": model})
    planned = ExperimentPlan(**dict(experiment))
    run = Run(name, "cpu", planned, host, data, Path("results", name, "cpu"))
    train_here(run)
    return run.out / records.MODEL, experiment


def test_no_piece_of_text_is_in_two_parts() -> None:
    characters = runpy.run_path(str(ROOT / "examples/own-jobs/characters.py"))
    parts = [characters["Characters"](part) for part in characters["PARTS"]]
    assert sum(len(part.numbers) for part in parts) == len(load_iris().DESCR)
