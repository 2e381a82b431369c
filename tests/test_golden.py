"""Results that users rely on: weights, history, columns of comparison.csv, MLflow's names, answers.

All but the answers are compared with golden/pipeline.json. Rewrite it with
`PHOTOFINISH_UPDATE_GOLDEN=1 pytest -n 0 tests/test_golden.py`, and read the difference before you
commit it. Bits hold on one kind of machine, and each kind has its own. Losses hold within a
tolerance on every machine.

Every example passes `plan`, and each experiment trains an epoch on samples of its shape.
"""

from __future__ import annotations

import json
import os
import runpy
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from conftest import PARTS, ROOT, CustomFiles, digits_plan, from_array, learnable_images
from image_files import write_picture
from in_process import train_and_evaluate
from outputs import verdict
from PIL import Image
from result_files import read_pair
from safetensors.torch import load_file
from services import WARNS
from sklearn.datasets import load_iris
from training_process import train_here

from photofinish.config.base import read_plan
from photofinish.config.datasets import CustomDataset, DatasetPlan
from photofinish.config.experiment import Experiment, ExperimentPlan
from photofinish.config.loader import read_params
from photofinish.data.sources import download
from photofinish.data.split import read_raw, split
from photofinish.machine.fingerprint import CpuTarget
from photofinish.machine.host import cpu_facts
from photofinish.planning.plan import write_plan
from photofinish.reporting.report import FILES
from photofinish.results import records
from photofinish.runs.run import Run
from photofinish.tracking.documents import TAG_BUSY
from photofinish.tracking.mlflow_worker import sync_all
from photofinish.tracking.store import Store

pytestmark = WARNS

GOLDEN = Path(__file__).parent / "golden" / "pipeline.json"
UPDATES = bool(os.environ.get("PHOTOFINISH_UPDATE_GOLDEN"))
PART_SIZES = {"validation": 0.2, "test": 0.2}
MADE = {"source": "synthetic", "images": 60, "classes": 4, **PART_SIZES}
MNIST = MADE | {"shape": [1, 28, 28]}
IMAGES = {"source": "csv", "path": "made/images.csv", "size": 32, **PART_SIZES}
# For each experiment: the file and experiment it is a small version of, and its small data set.
SYSTEMS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "mnist-linear": ("mnist-linear", "mnist-linear", MNIST | {"mean": [0.13], "std": [0.31]}),
    "mnist-mlp": ("mnist-mlp", "mnist-mlp", MNIST | {"seed": 1}),
    "lenet": ("fashion-lenet-grid", "lenet-1000-workers-0", MNIST | {"seed": 2}),
    "cnn": ("caltech101-cnn", "caltech101-cnn", IMAGES),
    "own-network": ("own-network", "residual-focal", {"count": 90}),
    "own-table": ("own-table", "progression-smooth", {}),
}

KEPT: dict[str, Any] = {"cnn": {"model": {"init": "xavier_uniform"}}}
"""Settings that the examples no longer have, so that the frozen numbers stay."""


def merged(below: Any, above: Any) -> Any:
    if not isinstance(below, dict) or not isinstance(above, dict):
        return above
    return below | {key: merged(below.get(key), value) for key, value in above.items()}


def small_version(name: str) -> dict[str, Any]:
    """Return a params.yaml of one tutorial's system, on a small data set for two epochs."""
    file, original, dataset = SYSTEMS[name]
    example = yaml.safe_load((ROOT / "examples" / f"{file}.yaml").read_text(encoding="utf-8"))
    experiment = merged(example["defaults"], example["experiments"][original])
    if isinstance(experiment["model"], dict):
        experiment["model"].pop("weights", None)
    settings = example["datasets"][example["experiments"][original]["dataset"]]
    small = {"dataset": name, "epochs": 2, "batch_size": 16} | KEPT.get(name, {})
    return {
        "defaults": {"optimizer": {"name": "sgd", "lr": 0.125, "momentum": 0.9}},
        "datasets": {name: dataset if "source" in dataset else settings | dataset},
        "experiments": {name: merged(experiment, small)},
    }


def make_images(folder: Path) -> None:
    """Write 60 noisy pictures of three classes, and the CSV that lists them."""
    folder.mkdir()
    random, lines = np.random.default_rng(0), ["path,label"]
    for number in range(60):
        pixels = random.integers(0, 150, size=(40, 36, 3), dtype=np.uint8)
        pixels[:, :, number % 3] += 100
        Image.fromarray(pixels).save(folder / f"{number}.png")
        lines.append(f"{number}.png,{['red', 'green', 'blue'][number % 3]}")
    (folder / "images.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def trained(name: str, folder: Path, host: CpuTarget) -> Path:
    make_images(folder / "made")
    return train_and_evaluate(name, small_version(name), folder, host) / "cpu" / records.MODEL


@pytest.fixture(scope="module")
def golden() -> Iterator[dict[str, Any]]:
    """Return what is frozen, and rewrite its file afterwards where that is wanted."""
    found: dict[str, Any] = json.loads(GOLDEN.read_text(encoding="utf-8"))
    yield found
    if UPDATES:
        GOLDEN.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def machine() -> str:
    """Return what bits depend on."""
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{cpu_facts().model}, {capability}, torch {torch.__version__}"


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_system_learns_the_same(
    name: str, custom_files: CustomFiles, cpu_host: CpuTarget, golden: dict[str, Any]
) -> None:
    model = trained(name, custom_files.folder, cpu_host)
    record = records.read_record(model / records.RECORD, records.TrainingRecord)
    losses = [[row.training_loss, row.validation_loss] for row in records.read_history(model)]
    if UPDATES:
        golden["losses"][name] = losses
        golden["weights_sha256"].setdefault(machine(), {})[name] = record.weights_sha256
    assert np.ravel(losses).tolist() == pytest.approx(
        np.ravel(golden["losses"][name]).tolist(), rel=0.005, abs=1e-5
    )
    here = golden["weights_sha256"].get(machine(), {})
    assert record.weights_sha256 == here.get(name, record.weights_sha256)


BY_LOAD = {TAG_BUSY, "median_step_seconds"}
"""Names that a busy machine leaves out or adds."""


def test_mlflow_and_the_comparison_have_the_same_names(
    custom_files: CustomFiles, cpu_host: CpuTarget, store: Store, golden: dict[str, Any]
) -> None:
    trained("own-network", custom_files.folder, cpu_host)
    sync_all(store, ["own-network"], custom_files.folder / "results", custom_files.folder)
    (run,) = store.find_runs()
    found = {
        "columns": list(FILES["comparison.csv"]),
        "run": run.info.run_name,
        "params": sorted(run.data.params),
        "metrics": sorted({*run.data.metrics} - BY_LOAD),
        "tags": sorted(tag for tag in {*run.data.tags} - BY_LOAD if "git" not in tag),
    }
    if UPDATES:
        golden["names"] = found
    assert found == golden["names"]


JOBS: dict[str, Any] = yaml.safe_load((ROOT / "examples/own-jobs.yaml").read_text("utf-8"))
AT_LEAST = {"photos": 0.6, "characters": 0.2, "signals": 0.6, "tags": 0.6, "mixed": 0.6}
"""Accuracies that no chance reaches."""


@pytest.mark.parametrize("name", JOBS["experiments"])
def test_a_job_of_any_kind_is_trained_evaluated_and_answered(
    name: str, custom_files: CustomFiles, cpu_host: CpuTarget
) -> None:
    defaults = JOBS["defaults"] | {"epochs": 3}
    params = JOBS | {"defaults": defaults, "experiments": {name: JOBS["experiments"][name]}}
    pair = read_pair(name, train_and_evaluate(name, params, custom_files.folder, cpu_host))
    scores = pair.cpu.trained.scores
    if name in ("table", "gan", "contrastive"):
        assert scores.test_accuracy is None
        assert scores.test_loss > 0
    else:
        assert scores.test_accuracy > AT_LEAST.get(name, 0)
    assert name != "table" or len(pair.cpu.history) < 30  # it stopped early
    assert verdict(pair).answer


EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
CHANNELS_AND_SIDE = {
    "digits": (1, 8),
    "mnist": (1, 28),
    "fashion": (1, 28),
    "caltech101": (3, 32),
    "caltech101-once": (3, 32),
    "cifar10": (3, 32),
}
COUNT = 30  # leaves no batch of one image, which ResNet's batch norm could not train on


def different_experiments() -> list[tuple[str, str]]:
    """Return each experiment by its file. Batches larger than the data set count as one size.

    Another test trains own-jobs.
    """
    different: dict[str, tuple[str, str]] = {}
    for path in EXAMPLES:
        if path.stem == "own-jobs":
            continue
        for name, experiment in read_params(path).experiments.items():
            batch = {"batch_size": min(experiment.batch_size, COUNT)}
            text = experiment.model_copy(update=batch).model_dump_json()
            different.setdefault(text, (path.stem, name))
    return [*different.values()]


@pytest.fixture
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


@pytest.mark.usefixtures("project_folder")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
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


@pytest.mark.usefixtures("project_folder")
@pytest.mark.parametrize(("example", "name"), different_experiments())
def test_each_experiment_trains_an_epoch(example: str, name: str, cpu_host: CpuTarget) -> None:
    folder, experiment = train_an_epoch(example, name, cpu_host)
    record = records.read_training(folder)
    assert isinstance(record, records.TrainingRecord)
    assert record.experiment == experiment.model_copy(update={"metrics": ()})
    assert [row.epoch for row in records.read_history(folder)] == [1]


@pytest.mark.usefixtures("project_folder")
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
        grey = learnable_images(COUNT, side=side)
        images = np.repeat(grey.inputs[np.arange(COUNT)], channels, axis=1)
        split(digits_plan(), from_array(images, grey.labels, grey.class_names), data)
    if getattr(experiment.model, "weights", None):  # test_models.py trains from them
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
