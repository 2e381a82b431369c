"""The model in MLflow answers to images as they are what `evaluate` found, wherever it is loaded and served."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pytest
import torch
import yaml
from conftest import MakeResult, MakeTrainer, OwnFiles
from mlflow.entities import LoggedModelStatus
from mlflow.exceptions import MlflowException
from mlflow.pyfunc.scoring_server import InvocationsResponse, invocations
from result_files import trained, write_scores, write_trained
from torch.nn.functional import cross_entropy

from photofinish.config.networks import CustomModel
from photofinish.data.packed import PackedSplit
from photofinish.files import sha256_of_bytes, write_bytes_atomically
from photofinish.results import records
from photofinish.results.learned import weights_of
from photofinish.runs.evaluation import evaluate
from photofinish.source_code import code_of_users
from photofinish.tracking import mirror
from photofinish.tracking.served import as_served
from photofinish.tracking.store import Store
from photofinish.tracking.sync import sync_experiments

# sqlite3 and MLflow's readers of old formats warn about themselves
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore:.*unpickl.*", "ignore::DeprecationWarning")

NAME = "small-mlp"


@pytest.fixture
def own_results(results: Path, own_files: OwnFiles, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same network, but of the user's own: a class in a file that imports a neighbour, and that one a file from
    elsewhere on Python's path."""
    monkeypatch.syspath_prepend(str((own_files.folder / own_files.write("lib/widths.py", "HIDDEN = 8\n")).parent))
    own_files.write("parts.py", "from torch import nn\nfrom widths import HIDDEN\n")
    source = (
        "from parts import HIDDEN, nn\n"
        "class Net(nn.Sequential):\n"
        "    def __init__(self, classes):\n"
        "        super().__init__(nn.Flatten(), nn.Linear(64, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, classes))\n"
    )
    model = CustomModel(name=own_files.write("net.py", source) + ":Net")
    path = results / NAME / "cpu" / records.MODEL / records.RECORD
    record = records.read_record(path, records.Training)
    experiment, custom_code = record.experiment.model_copy(update={"model": model}), code_of_users([model.reference])
    records.write_record(path, record.model_copy(update={"experiment": experiment, "custom_code": custom_code}))
    return results


def test_a_network_of_one_s_own_is_logged_with_its_files_and_loads_without_them(
    store: Store, own_results: Path, packed_split: PackedSplit, own_files: OwnFiles, tmp_path: Path
) -> None:
    expected = evaluate(NAME, {"cpu": own_results / NAME / "cpu" / records.MODEL}, packed_split).predicted["cpu"]
    sync_experiments(store, [NAME], own_results, with_models=False)  # as `compare` does
    assert not store.find_runs()[0].outputs.model_outputs
    sync_experiments(store, [NAME], own_results)
    folder = shutil.copytree(
        mlflow.artifacts.download_artifacts(model_address(store)), tmp_path / "elsewhere" / "model"
    )
    (own_files.folder / "net.py").unlink()
    (own_files.folder / "parts.py").unlink()
    (own_files.folder / "lib/widths.py").unlink()
    np.save(folder.parent / "images.npy", packed_split.images("test"))
    ran = subprocess.run(
        [sys.executable, "-c", LOAD_IT], cwd=folder.parent, capture_output=True, text=True, check=False
    )
    assert json.loads(ran.stdout) == expected.tolist(), ran.stderr


def test_figures_go_to_mlflow_without_the_model_where_its_code_has_changed(
    store: Store, own_results: Path, own_files: OwnFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    source = (own_files.folder / "net.py").read_text(encoding="utf-8")
    own_files.write("net.py", f"{source}# a comment\n")
    assert sync_experiments(store, [NAME], own_results) == 1
    assert "small-mlp/cpu goes without its model: net.py changed after" in capsys.readouterr().err
    (run,) = store.find_runs()
    assert run.info.status == "FINISHED"
    own_files.write("net.py", source)
    sync_experiments(store, [NAME], own_results)
    assert "parts" not in sys.modules  # another experiment's may have the same name
    assert mlflow.pytorch.load_model(model_address(store)) is not None


LOAD_IT = """
import json, sys, warnings
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "photofinish":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
warnings.simplefilter("ignore")
import mlflow, numpy as np
model = mlflow.pyfunc.load_model("model")
print(json.dumps(model.predict((np.load("images.npy") / 255).astype(np.float32)).argmax(axis=1).tolist()))
"""


@pytest.fixture
def results(tmp_path: Path, make_result: MakeResult, make_trainer: MakeTrainer, packed_split: PackedSplit) -> Path:
    """A training on the small data set, with the weights that it came to."""
    result, manifest = trained(make_result, NAME), packed_split.manifest
    folder = write_trained(tmp_path / "results", result) / records.MODEL
    trainer = make_trainer(result.record.experiment)
    list(trainer.epochs())
    weights = weights_of(trainer.network)
    facts = {"class_names": manifest.class_names, "mean": manifest.mean, "std": manifest.std}
    record = result.record.model_copy(update={**facts, "weights_sha256": sha256_of_bytes(weights)})
    records.write_record(folder / records.RECORD, record)
    write_bytes_atomically(folder / records.WEIGHTS, weights)
    return tmp_path / "results"


@pytest.mark.parametrize(
    ("dtype", "mean", "std"), [("int64", (), ()), ("float32", (), ()), ("float32", (1.0, 2.0), (4.0, 8.0))]
)
def test_a_network_of_no_images_takes_what_its_data_set_gives(
    dtype: str, mean: tuple[float, ...], std: tuple[float, ...]
) -> None:
    items = torch.arange(6, dtype=torch.int64 if dtype == "int64" else torch.float32).view(3, 2)
    taken = as_served(torch.nn.Identity(), mean, std, dtype, 1)(items)
    assert taken.dtype == items.dtype
    assert taken.tolist() == (((items - torch.tensor(mean)) / torch.tensor(std)) if mean else items).tolist()


def model_address(store: Store) -> str:
    (run,) = store.find_runs()
    (output,) = run.outputs.model_outputs
    return f"models:/{output.model_id}"


def served(address: str, request: str) -> InvocationsResponse:
    """What the server of `mlflow models serve` answers."""
    model = mlflow.pyfunc.load_model(address)
    return invocations(request, "application/json", model, model.metadata.get_input_schema())


def as_json(images: Any) -> str:
    return json.dumps({"inputs": images.tolist()})


def predictions(answer: InvocationsResponse) -> Any:
    assert answer.status == 200, answer.response
    return np.array(json.loads(answer.response)["predictions"])


def test_a_served_model_is_as_accurate_on_the_test_images_as_evaluate_found(
    store: Store, results: Path, packed_split: PackedSplit, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = evaluate(NAME, {"cpu": results / NAME / "cpu" / records.MODEL}, packed_split)
    expected = judged.predicted["cpu"]
    assert judged.evaluation.devices["cpu"].test_accuracy > 0.9  # by chance, 1 in 3
    sync_experiments(store, [NAME], results)
    # As where this package isn't installed:
    monkeypatch.setitem(sys.modules, "photofinish.tracking.served", None)
    monkeypatch.setattr(mirror, "_write_model", None)
    address, images = model_address(store), np.array(packed_split.images("test"))
    fractions = images.astype(np.float32) / 255
    scores = predictions(served(address, as_json(images / 255)))
    assert (scores.argmax(axis=1) == expected).all()
    loss = cross_entropy(torch.from_numpy(scores), torch.from_numpy(judged.actual)).item()
    # Classes this easy are told apart without normalising, too; the loss is not the same then.
    assert loss == pytest.approx(judged.evaluation.devices["cpu"].test_loss, rel=1e-5)
    assert (mlflow.pyfunc.load_model(address).predict(fractions).argmax(axis=1) == expected).all()
    loaded = mlflow.pytorch.load_model(address)
    assert not loaded.training
    for given in (images, fractions, images / 255):
        assert (loaded(torch.from_numpy(given)).argmax(dim=1).numpy() == expected).all()


def test_what_a_served_model_would_misread_is_refused_with_what_to_send(
    store: Store, results: Path, packed_split: PackedSplit
) -> None:
    sync_experiments(store, [NAME], results)
    address, images = model_address(store), np.array(packed_split.images("test"))
    with pytest.raises(MlflowException) as refused:
        served(address, as_json(images))
    assert "floats from 0 to 1: divide pixels by 255" in refused.value.serialize_as_json()
    with pytest.raises(ValueError, match="divide pixels by 255"):
        mlflow.pytorch.load_model(address)(torch.from_numpy(images.astype(np.int64)))
    with pytest.raises(MlflowException, match="does not match expected"):
        mlflow.pyfunc.load_model(address).predict(images)


def test_a_logged_model_says_what_it_is_of_and_how_good(
    store: Store, results: Path, packed_split: PackedSplit, make_result: MakeResult
) -> None:
    for times in range(2):
        sync_experiments(store, [NAME], results)
        (run,) = store.find_runs()
        model = store.client.get_logged_model(model_address(store).removeprefix("models:/"))
        assert (model.name, model.source_run_id) == (f"{NAME}-cpu", run.info.run_id)
        assert model.status == LoggedModelStatus.READY
        assert model.params == run.data.params
        assert model.tags["mlflow.user"] == run.data.tags["mlflow.user"]
        shown = {metric.key: metric.value for metric in model.metrics}
        assert shown.get("test_accuracy") == (0.75 if times else None)
        write_scores(results, make_result(NAME, accuracy=0.75))
    described = yaml.safe_load((Path(model.artifact_location.removeprefix("file://")) / "MLmodel").read_text())
    assert (described["run_id"], described["model_id"]) == (run.info.run_id, model.model_id)
    assert described["metadata"]["class_names"] == list(packed_split.manifest.class_names)
    example = Path(model.artifact_location.removeprefix("file://"), "serving_input_example.json").read_text()
    assert predictions(served(f"models:/{model.model_id}", example)).shape == (1, 3)


def test_a_model_that_was_cut_off_is_completed_and_not_logged_twice(
    store: Store, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(*_: Any) -> None:
        raise ConnectionError("gone")

    with monkeypatch.context() as patched:
        patched.setattr(store.client, "finalize_logged_model", cut_off)
        with pytest.raises(ConnectionError):
            sync_experiments(store, [NAME], results)
    sync_experiments(store, [NAME], results)
    (model,) = store.client.search_logged_models([store.experiment_id])
    assert model_address(store) == f"models:/{model.model_id}"
    assert model.status == LoggedModelStatus.READY
