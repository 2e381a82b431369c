"""Results that users rely on: weights, history, columns of comparison.csv, MLflow's names, answers.

All but the answers are compared with golden/pipeline.json. Rewrite it with
`PHOTOFINISH_UPDATE_GOLDEN=1 pytest -n 0 tests/test_golden.py`, and read the difference before you
commit it. Bits hold on one kind of machine, and each kind has its own. Losses hold within a
tolerance on every machine.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from conftest import ROOT, CustomFiles
from in_process import train_and_evaluate
from outputs import verdict
from PIL import Image
from result_files import read_pair
from services import WARNS

from photofinish.machine.fingerprint import CpuTarget
from photofinish.machine.host import cpu_facts
from photofinish.reporting.report import FILES
from photofinish.results import records
from photofinish.tracking.documents import TAG_BUSY
from photofinish.tracking.store import Store
from photofinish.tracking.sync import sync_all

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


BY_LOAD = {TAG_BUSY}
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
