"""The model in MLflow predicts what `evaluate` found, wherever it is loaded and served."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import mlflow
import mlflow.pytorch
import numpy as np
import pytest
import torch
import yaml
from conftest import CustomFiles, MakeExperiment
from mlflow.entities import LoggedModelStatus
from mlflow.exceptions import MlflowException
from mlflow.pyfunc.scoring_server import InvocationsResponse, invocations
from services import WARNS
from torch.nn.functional import cross_entropy
from training_process import train_here

from photofinish.config.networks import CustomModel
from photofinish.custom.imports import custom_code_hashes
from photofinish.custom.running import forget_imports
from photofinish.data.packed import PackedSplit
from photofinish.evaluation.evaluate import Judged, evaluate
from photofinish.machine.fingerprint import CpuTarget
from photofinish.results import records
from photofinish.runs.run import Run
from photofinish.tracking.model import as_served
from photofinish.tracking.store import Store
from photofinish.tracking.sync import sync_all

pytestmark = WARNS

NAME = "small-mlp"
NETWORK = """
from parts import HIDDEN, nn
class Net(nn.Sequential):
    def __init__(self, classes):
        layers = nn.Linear(64, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, classes)
        super().__init__(nn.Flatten(), *layers)
"""
LOAD_WITHOUT_THIS_PACKAGE = """
import json, sys, warnings
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "photofinish":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
warnings.simplefilter("ignore")
import mlflow, numpy as np
model = mlflow.pyfunc.load_model("model")
fractions = (np.load("images.npy") / 255).astype(np.float32)
print(json.dumps(model.predict(fractions).argmax(axis=1).tolist()))
"""


@pytest.fixture(scope="module")
def trained_once(
    tmp_path_factory: pytest.TempPathFactory,
    make_experiment: MakeExperiment,
    cpu_host: CpuTarget,
    packed_split: PackedSplit,
) -> Path:
    """Train on the small data set."""
    folder = tmp_path_factory.mktemp("trained")
    out = folder / "results" / NAME / "cpu"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        train_here(Run(NAME, "cpu", make_experiment(), cpu_host, packed_split.folder, out))
    return folder / "results"


@pytest.fixture
def results(trained_once: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained_once, tmp_path / "results"))


@pytest.fixture
def custom_results(
    results: Path, custom_files: CustomFiles, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Write the network as a custom class whose neighbour imports a file from elsewhere."""
    custom_files.write("lib/widths.py", "HIDDEN = 8\n")
    monkeypatch.syspath_prepend(str(custom_files.folder / "lib"))
    custom_files.write("parts.py", "from torch import nn\nfrom widths import HIDDEN\n")
    custom_files.write("net.py", NETWORK)
    record_custom_code(results)
    return results


def record_custom_code(results: Path) -> None:
    """Let the record name the network, as its file is now."""
    model = CustomModel(name="./net.py:Net", output=None)
    path = results / NAME / "cpu" / records.MODEL / records.RECORD
    record = records.read_record(path, records.TrainingRecord)
    experiment = record.experiment.model_copy(update={"model": model})
    code = custom_code_hashes([model.reference])
    changes = {"experiment": experiment, "custom_code": code}
    records.write_record(path, record.model_copy(update=changes))


def mirror(store: Store, results: Path, *, with_models: bool = True) -> int:
    report = results.parent / "report"
    return sync_all(store, [NAME], results, report, with_models=with_models)


def judge(results: Path, split: PackedSplit) -> Judged:
    return evaluate(NAME, {"cpu": results / NAME / "cpu" / records.MODEL}, split)


def model_address(store: Store) -> str:
    (run,) = store.find_runs()
    (output,) = run.outputs.model_outputs
    return f"models:/{output.model_id}"


def ask_server(address: str, request: str) -> InvocationsResponse:
    """Return the answer of `mlflow models serve`."""
    model = mlflow.pyfunc.load_model(address)
    return invocations(request, "application/json", model, model.metadata.get_input_schema())


def as_json(images: Any) -> str:
    return json.dumps({"inputs": images.tolist()})


def predictions(answer: InvocationsResponse) -> Any:
    assert answer.status == 200, answer.response
    return np.array(json.loads(answer.response)["predictions"])


def test_a_run_goes_without_a_network_that_cannot_be_pickled(
    store: Store, results: Path, custom_files: CustomFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    source = NETWORK.replace("from parts import HIDDEN, nn", "from torch import nn\nHIDDEN = 8")
    source += "    def __reduce__(self):\n        raise RuntimeError('only through state_dict()')\n"
    custom_files.write("net.py", source)
    record_custom_code(results)
    mirror(store, results)
    assert (
        "is logged without its model: it can't be pickled: only through" in capsys.readouterr().err
    )
    (run,) = store.find_runs()
    assert run.info.status == "FINISHED"


def test_a_custom_network_is_logged_with_its_files_and_loads_without_this_package(
    store: Store,
    custom_results: Path,
    packed_split: PackedSplit,
    custom_files: CustomFiles,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with forget_imports():
        expected = judge(custom_results, packed_split).predicted["cpu"].tolist()
    mirror(store, custom_results, with_models=False)  # as `compare` does
    network = custom_files.folder / "net.py"
    network.write_text(f"{NETWORK}WIDTH = 2\n", encoding="utf-8")
    mirror(store, custom_results)
    assert f"{NAME}/cpu is logged without its model: net.py" in capsys.readouterr().err
    (run,) = store.find_runs()
    assert (run.info.status, run.outputs.model_outputs) == ("FINISHED", [])
    network.write_text(NETWORK, encoding="utf-8")
    mirror(store, custom_results)
    assert "parts" not in sys.modules  # another experiment's may have the same name

    elsewhere = custom_files.folder / "elsewhere"
    shutil.copytree(mlflow.artifacts.download_artifacts(model_address(store)), elsewhere / "model")
    for name in ("net.py", "parts.py", "lib/widths.py"):
        (custom_files.folder / name).unlink()
    np.save(elsewhere / "images.npy", packed_split.images("test"))
    command = [sys.executable, "-c", LOAD_WITHOUT_THIS_PACKAGE]
    ran = subprocess.run(command, cwd=elsewhere, capture_output=True, text=True, check=False)
    assert json.loads(ran.stdout) == expected, ran.stderr


@pytest.mark.parametrize(
    ("dtype", "mean", "std"),
    [("int64", (), ()), ("float32", (), ()), ("float32", (1.0, 2.0), (4.0, 8.0))],
)
def test_a_network_of_other_items_gets_them_as_in_training(
    dtype: str, mean: tuple[float, ...], std: tuple[float, ...]
) -> None:
    items = torch.arange(6, dtype=getattr(torch, dtype)).view(3, 2)
    expected = (items - torch.tensor(mean)) / torch.tensor(std) if mean else items
    outputs = as_served(torch.nn.Identity(), mean, std, dtype, 1)(items)
    assert outputs.dtype == items.dtype
    assert torch.equal(outputs, expected)


def test_a_served_model_is_as_accurate_as_evaluate_found_and_refuses_what_it_would_misread(
    store: Store, results: Path, packed_split: PackedSplit, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = judge(results, packed_split)
    expected, scores = judged.predicted["cpu"], judged.evaluation.devices["cpu"]
    assert scores.test_accuracy > 0.9  # by chance, 1 in 3
    mirror(store, results)
    address, images = model_address(store), np.array(packed_split.images("test"))
    monkeypatch.setitem(sys.modules, "photofinish.tracking.model", None)  # not installed there
    fractions = images.astype(np.float32) / 255
    outputs = predictions(ask_server(address, as_json(images / 255)))
    assert (outputs.argmax(axis=1) == expected).all()
    # Without normalising, these easy classes are the same, but not the loss.
    loss = cross_entropy(torch.from_numpy(outputs), torch.from_numpy(judged.actual)).item()
    assert loss == pytest.approx(scores.test_loss, rel=1e-5)
    loaded = mlflow.pytorch.load_model(address)
    assert not loaded.training
    for items in (images, fractions, images / 255):
        assert (loaded(torch.from_numpy(items)).argmax(dim=1).numpy() == expected).all()

    with pytest.raises(MlflowException) as refused:
        ask_server(address, as_json(images))
    assert "divide pixels by 255" in refused.value.serialize_as_json()
    with pytest.raises(ValueError, match="divide pixels by 255"):
        loaded(torch.from_numpy(images.astype(np.int64)))
    with pytest.raises(MlflowException, match="does not match expected"):
        mlflow.pyfunc.load_model(address).predict(images)


def test_a_logged_model_has_its_run_and_an_example(store: Store, results: Path) -> None:
    mirror(store, results)
    (run,) = store.find_runs()
    model = store.client.get_logged_model(model_address(store).removeprefix("models:/"))
    assert (model.name, model.source_run_id) == (f"{NAME}-cpu", run.info.run_id)
    assert model.status == LoggedModelStatus.READY
    folder = Path(model.artifact_location.removeprefix("file://"))
    described = yaml.safe_load((folder / "MLmodel").read_text())
    assert (described["run_id"], described["model_id"]) == (run.info.run_id, model.model_id)
    example = (folder / "serving_input_example.json").read_text()
    assert predictions(ask_server(f"models:/{model.model_id}", example)).shape == (1, 3)
