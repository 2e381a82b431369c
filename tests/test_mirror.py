"""MLflow shows each result on disk exactly once. Its model predicts what `evaluate` found."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import mlflow
import mlflow.pytorch
import numpy as np
import psutil
import pytest
import torch
import yaml
from conftest import CustomFiles, MakeExperiment, MakeResult, digits_plan
from mlflow.entities import LoggedModelStatus, Metric
from mlflow.entities import Run as MlflowRun
from mlflow.exceptions import MlflowException
from mlflow.pyfunc.scoring_server import InvocationsResponse, invocations
from result_files import trained, with_record, write_result, write_scores, write_trained
from services import WARNS
from torch.nn.functional import cross_entropy
from training_process import train_here

from photofinish.config.networks import CustomModel
from photofinish.custom.imports import custom_code_hashes
from photofinish.custom.running import forget_imports
from photofinish.data import PartName
from photofinish.data.packed import PackedSplit
from photofinish.evaluation.evaluate import Judged, evaluate
from photofinish.machine.fingerprint import CpuTarget
from photofinish.results import records
from photofinish.results.measured import MEASURED
from photofinish.runs.run import Run
from photofinish.tracking import documents, mlflow_worker
from photofinish.tracking.documents import RunDocument, training_document
from photofinish.tracking.mlflow_worker import bring_up_to_date, create_run, sync_all
from photofinish.tracking.model import as_served
from photofinish.tracking.store import Store, close_abandoned_runs, process_tag

pytestmark = WARNS

NAME = "small-mlp"
HERE = platform.node()
SAMPLES: dict[PartName, int] = {"train": 6, "validation": 2, "test": 2}


@pytest.fixture
def results(tmp_path: Path, make_result: MakeResult) -> Path:
    """A training on the CPU with its weights, and no accelerator."""
    result = with_record(trained(make_result, NAME), samples=SAMPLES)
    write_trained(tmp_path / "results", result)
    write_result(tmp_path / "results", make_result(NAME, "gpu", unavailable="no accelerator"))
    return tmp_path / "results"


def mirror(store: Store, results: Path, *, with_models: bool = False) -> int:
    return sync_all(store, [NAME], results, results.parent / "report", with_models=with_models)


def document_of(results: Path) -> RunDocument:
    document = training_document(NAME, "cpu", results)
    assert document
    return document


def the_run(store: Store) -> MlflowRun:
    """Return the only run."""
    (run,) = store.find_runs()
    return run


def steps(store: Store, run: MlflowRun) -> Counter[tuple[str, int]]:
    return Counter(
        (key, metric.step)
        for key in run.data.metrics
        for metric in store.client.get_metric_history(run.info.run_id, key)
    )


def steps_of(document: RunDocument) -> Counter[tuple[str, int]]:
    return Counter((metric.key, metric.step) for metric in document.metrics)


def artifacts(store: Store, run: MlflowRun, folder: str = "") -> set[str]:
    paths: set[str] = set()
    for file in store.client.list_artifacts(run.info.run_id, folder):
        paths |= artifacts(store, run, file.path) if file.is_dir else {file.path}
    return paths


def assert_complete(store: Store, run: MlflowRun, document: RunDocument) -> None:
    """Check that the run has each value once, and all files."""
    assert run.info.status == "FINISHED"
    assert steps(store, run) == steps_of(document)
    assert artifacts(store, run) >= {f"{folder}/{path.name}" for path, folder in document.files}


def change_timings(results: Path, **changes: Any) -> Path:
    """Make another result of it, trained at another time or place."""
    path = results / NAME / "cpu" / records.TIMINGS_FOLDER / records.TIMINGS
    timings = records.read_record(path, records.TrainingTimes)
    records.write_record(path, timings.model_copy(update=changes))
    return results


def store_of(store: Store, *, is_shared: bool) -> Store:
    """Return the project's own store, or one like it that other machines use, too."""
    return replace(store, local_artifacts=None) if is_shared else store


def start_run(store: Store, results: Path, process: str) -> str:
    """Create the run of a training as the stage does when it begins."""
    document = document_of(results)
    tags = document.tags | {documents.TAG_PROCESS: process}
    return create_run(store, document.name, tags, document.started_ms)


@pytest.fixture(scope="module")
def gone() -> str:
    """Tag of a process that has ended."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return json.dumps([HERE, ended.pid, 1.7e9])


def test_a_result_is_mirrored_once(store: Store, results: Path, make_result: MakeResult) -> None:
    write_scores(results, trained(make_result, NAME))
    assert [mirror(store, results, with_models=True) for _ in range(2)] == [1, 0]
    run, document = the_run(store), document_of(results)
    assert_complete(store, run, document)
    assert run.info.run_name == f"{NAME}/cpu"
    assert run.info.start_time == document.started_ms
    assert run.info.end_time - run.info.start_time == 30_000  # of the whole job
    assert run.data.tags["mlflow.user"] == psutil.Process().username()
    assert run.data.params == document.params
    assert document.tags.items() <= run.data.tags.items()
    files = {f"model/{records.WEIGHTS}", f"evaluation/{records.EVALUATION}"}
    assert files <= artifacts(store, run)
    assert len(run.outputs.model_outputs) == 1


@pytest.fixture
def start(
    store: Store, results: Path, make_result: MakeResult, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], None]:
    """Begin the training of `results`, as its stage does."""
    monkeypatch.setattr(mlflow_worker, "open_project", lambda: store)
    record = trained(make_result, NAME).record
    data = record.data_sha256, SAMPLES
    key = document_of(results).tags[documents.TAG_TRAINING_KEY]
    return lambda: mlflow_worker.start(NAME, "cpu", record.experiment, key, *data, 0)


def test_a_run_has_its_data_set_live_and_when_it_is_rebuilt_and_is_found_by_it(
    store: Store, results: Path, start: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(results.parent)
    records.write_record(Path("data/plan/datasets/small.json"), digits_plan())
    start()
    live = the_run(store).inputs.to_dictionary()
    mlflow_worker.training_ended(NAME, "cpu", results, [])
    assert the_run(store).inputs.to_dictionary() == live
    store.client.delete_run(the_run(store).info.run_id)
    mirror(store, results)
    assert the_run(store).inputs.to_dictionary() == live
    (found,) = the_run(store).inputs.dataset_inputs
    assert (found.dataset.name, found.dataset.digest) == ("small", "d" * 16)
    assert json.loads(found.dataset.source).items() >= {"source": "digits", "test": 0.2}.items()
    assert json.loads(found.dataset.profile) == {"num_rows": 10, **SAMPLES}
    assert len(store.find_runs(f"dataset.digest = '{'d' * 16}'")) == 1


def test_a_training_that_stopped_has_the_reason_and_continues_its_run_also_in_another_container(
    store: Store, results: Path, start: Callable[[], None]
) -> None:
    start()
    run_id = the_run(store).info.run_id
    mlflow_worker.stopped("FAILED", "the loss is no longer finite")
    assert the_run(store).info.status == "FAILED"
    assert "no longer finite" in the_run(store).data.tags[documents.TAG_NOTE]

    before = json.dumps(["another-name", 1, 1.7e9])  # of the container
    store.client.set_tag(run_id, documents.TAG_PROCESS, before)
    store.client.set_tag(run_id, documents.TAG_HOST, "another-name")
    start()
    assert the_run(store).data.tags[documents.TAG_PROCESS] == process_tag()
    assert not the_run(store).data.tags[documents.TAG_NOTE]
    mlflow_worker.training_ended(NAME, "cpu", results, [])
    run = the_run(store)
    assert (run.info.run_id, run.info.status) == (run_id, "FINISHED")


def test_a_run_of_a_copy_becomes_current_once_the_project_has_its_result(
    store: Store, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror(store, results)
    (results.parent / "report").mkdir()
    (results.parent / "report" / documents.REPORT_TEXT).write_text("# photofinish\n")
    change_timings(results, total_seconds=40.0)
    with monkeypatch.context() as patch:
        patch.setenv("DVC_ROOT", str(results))  # anywhere else than here
        assert [mirror(store, results) for _ in range(2)] == [1, 0]
    assert current_totals(store) == {30.0}
    assert mirror(store, results) == 2
    assert current_totals(store) == {40.0, None}


def current_totals(store: Store) -> set[float | None]:
    """Return the times of the trainings that are current. The comparison has none."""
    found = store.find_runs(f"tags.`{documents.TAG_CURRENT}` = 'true'")
    return {run.data.metrics.get("total_seconds") for run in found}


def test_only_the_run_of_the_result_on_disk_is_current(store: Store, results: Path) -> None:
    for seconds in (30.0, 40.0, 30.0):  # `dvc checkout` brings the first result back
        mirror(store, change_timings(results, total_seconds=seconds))
        current = {
            run.data.metrics["total_seconds"]: run.data.tags[documents.TAG_CURRENT]
            for run in store.find_runs()
        }
        assert current.pop(seconds) == "true"
        assert set(current.values()) <= {"false"}
    assert len(store.find_runs()) == 2
    sync_all(store, ["another"], results, results.parent / "report")
    assert current_totals(store) == set()


@pytest.mark.parametrize(("logged", "change"), [(5, 0.0), (1000, 1.0)], ids=["a part", "otherwise"])
def test_a_run_that_its_training_could_not_complete_is_completed(
    store: Store, results: Path, gone: str, logged: int, change: float
) -> None:
    """No step is logged twice, and a changed value is the one that MLflow shows."""
    run_id, document = start_run(store, results, gone), document_of(results)
    earlier = [
        Metric(one.key, one.value + change, one.timestamp - 5, one.step)
        for one in document.metrics[:logged]
    ]
    store.client.log_batch(run_id, earlier)
    mirror(store, results)
    run = the_run(store)
    assert (run.info.run_id, run.info.status) == (run_id, "FINISHED")
    if not change:
        assert steps(store, run) == steps_of(document)
    last = {metric.key: metric.value for metric in document.metrics}
    assert {key: run.data.metrics[key] for key in last} == last
    assert mirror(store, results) == 0


@pytest.mark.parametrize(("is_shared", "of_another"), [(True, "RUNNING"), (False, "KILLED")])
def test_abandoned_runs_close(store: Store, gone: str, is_shared: bool, of_another: str) -> None:
    store = store_of(store, is_shared=is_shared)
    statuses = {
        gone: "KILLED",
        json.dumps([HERE, os.getpid(), 1.7e9]): "KILLED",  # another process with the same id
        json.dumps([f"not-{HERE}", os.getpid(), 1.7e9]): of_another,
        process_tag(): "RUNNING",
    }
    runs = {
        create_run(store, "left", {documents.TAG_PROCESS: tag}, None): status
        for tag, status in statuses.items()
    }
    close_abandoned_runs(store)
    assert {run: store.client.get_run(run).info.status for run in runs} == runs


def test_a_run_that_another_process_writes_is_left_to_it(store: Store, results: Path) -> None:
    start_run(store, results, json.dumps(["lab", 1, time.time()]))
    assert mirror(store_of(store, is_shared=True), results) == 0
    assert the_run(store).info.status == "RUNNING"
    assert mirror(store, results) == 1  # lab is a former name of this container
    assert the_run(store).info.status == "FINISHED"


def test_scores_that_come_later_complete_the_run_beside_a_users_description(
    store: Store, results: Path, make_result: MakeResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror(store, results, with_models=True)
    before = the_run(store)
    store.client.set_tag(before.info.run_id, documents.TAG_NOTE, "my own words")
    sends = Mock(wraps=store.client.log_artifact)
    monkeypatch.setattr(store.client, "log_artifact", sends)
    for accuracy in (0.75, 0.5):
        sends.reset_mock()
        write_scores(results, trained(make_result, NAME, accuracy=accuracy))
        assert mirror(store, results, with_models=True) == 1
        sent = {Path(call.args[1]).name for call in sends.mock_calls}
        assert sent == {records.EVALUATION, MEASURED}
    after = the_run(store)
    assert after.info.run_id == before.info.run_id
    assert after.data.tags[documents.TAG_NOTE] == "my own words"
    assert after.data.metrics["test_accuracy"] == 0.5
    assert len(after.data.metrics) == len(before.data.metrics) + 3
    assert len(after.outputs.model_outputs) == 1
    twice = {key for (key, _), times in steps(store, after).items() if times > 1}
    assert twice == {"test_accuracy"}


@pytest.mark.parametrize("function", ["log_artifact", "finalize_logged_model", "set_terminated"])
def test_a_sync_that_is_cut_off_is_completed_by_the_next(
    store: Store, results: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    def cut_off(*_: Any, **__: Any) -> None:
        raise ConnectionError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(store.client, function, cut_off)
        with pytest.raises(ConnectionError):
            mirror(store, results, with_models=True)
    mirror(store, results, with_models=True)
    assert_complete(store, the_run(store), document_of(results))
    assert len(store.client.search_logged_models([store.experiment_id])) == 1


def test_a_record_of_an_older_photofinish_keeps_no_other_run_from_mlflow(
    store: Store, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(results / NAME, results / "older")
    file = results / "older/cpu/timings/timings.json"
    record = json.loads(file.read_bytes()) | {"attribution": None}
    file.write_text(json.dumps(record), encoding="utf-8")
    report = results.parent / "report"
    assert sync_all(store, ["older", NAME], results, report, with_models=False) == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "older/cpu" in line]
    assert "not logged" in line


def test_deleted_files_and_models_come_back(store: Store, results: Path, tmp_path: Path) -> None:
    mirror(store, results, with_models=True)
    before = the_run(store)
    files = {path for path in (tmp_path / "mlruns").rglob("*") if path.is_file()}
    shutil.rmtree(tmp_path / "mlruns")
    assert [mirror(store, results, with_models=True) for _ in range(2)] == [1, 0]
    assert {path for path in (tmp_path / "mlruns").rglob("*") if path.is_file()} == files
    after = the_run(store)
    assert after.info.run_id == before.info.run_id
    ids = [[one.model_id for one in run.outputs.model_outputs] for run in (before, after)]
    assert ids[0] == ids[1]
    store.client.delete_logged_model(ids[0][0])
    assert [mirror(store, results, with_models=True) for _ in range(2)] == [1, 0]
    (model,) = store.client.search_logged_models([store.experiment_id])
    assert (model.status, model.model_id != ids[0][0]) == ("READY", True)


def test_the_page_of_runs_shows_verdict_device_time_and_saving_of_each_run(
    store: Store, results: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(results.parent)
    (results.parent / "plan").mkdir()
    mirror(store, results)
    bring_up_to_date(5000)
    address = f"#/experiments/{store.experiment_id}/runs?workflowType=machine_learning"
    assert f"{address}&viewStateShareKey=photofinish" in capsys.readouterr().out
    tags = store.client.get_experiment(store.experiment_id).tags
    columns = json.loads(tags["mlflow.sharedViewState.photofinish"])["selectedColumns"]
    names = ["tags.`verdict", "params.`device", "tags.`time", "tags.`saves"]
    assert [column.rstrip("`") for column in columns] == [*names, "metrics.`test_accuracy"]
    assert the_run(store).data.tags["time"].endswith(" s")


def test_the_report_is_one_run_that_follows_its_changes(store: Store, tmp_path: Path) -> None:
    report = tmp_path / "report"
    assert sync_all(store, [], tmp_path, report) == 0
    (report / "figures").mkdir(parents=True)
    (report / "figures" / "loss.svg").write_text("<svg/>")
    text = report / documents.REPORT_TEXT
    text.write_text("# photofinish\n\n1 experiment: 1 No (start-up).\n")
    assert [sync_all(store, [], tmp_path, report) for _ in range(2)] == [1, 0]
    run = the_run(store)
    assert run.info.run_name == documents.COMPARISON
    assert run.data.metrics == {}
    note = f"{documents.OURS}: 1 experiment: 1 No (start-up)."
    assert run.data.tags[documents.TAG_NOTE] == note
    assert artifacts(store, run) == {"report/comparison.md", "report/figures/loss.svg"}
    (report / "figures" / "loss.svg").write_text("<svg></svg>")
    text.write_text("# photofinish\n\n1 experiment: 1 Yes.\n")
    assert sync_all(store, [], tmp_path, report) == 1
    run = the_run(store)
    assert run.data.tags[documents.TAG_NOTE] == f"{documents.OURS}: 1 experiment: 1 Yes."
    assert run.info.end_time == run.info.start_time  # else it seems to take days


def test_a_shared_store_has_a_current_run_of_each_kind_of_machine(
    store: Store, results: Path, cpu_host: CpuTarget
) -> None:
    assert cpu_host.cpu
    shared = replace(store, local_artifacts=None)
    mirror(shared, results)
    larger = cpu_host.model_copy(update={"cpu": replace(cpu_host.cpu, usable_cores=96)})
    for host_name in ("lab", "lab2"):
        mirror(shared, change_timings(results, host=larger, host_name=host_name))
    shown = {
        run.info.run_name.partition("@")[2]: (
            run.data.tags[documents.TAG_CURRENT],
            run.data.tags.get("mlflow.user"),
        )
        for run in shared.find_runs()
    }
    assert shown == {
        HERE: ("true", psutil.Process().username()),
        "lab": ("false", None),  # who trained there is not known
        "lab2": ("true", None),
    }


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
def learned(trained_once: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained_once, tmp_path / "results"))


@pytest.fixture
def custom_results(
    learned: Path, custom_files: CustomFiles, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Write the network as a custom class whose neighbour imports a file from elsewhere."""
    custom_files.write("lib/widths.py", "HIDDEN = 8\n")
    monkeypatch.syspath_prepend(str(custom_files.folder / "lib"))
    custom_files.write("parts.py", "from torch import nn\nfrom widths import HIDDEN\n")
    custom_files.write("net.py", NETWORK)
    record_custom_code(learned)
    return learned


def record_custom_code(learned: Path) -> None:
    """Let the record name the network, as its file is now."""
    model = CustomModel(name="./net.py:Net", output=None)
    path = learned / NAME / "cpu" / records.MODEL / records.RECORD
    record = records.read_record(path, records.TrainingRecord)
    experiment = record.experiment.model_copy(update={"model": model})
    code = custom_code_hashes([model.reference])
    changes = {"experiment": experiment, "custom_code": code}
    records.write_record(path, record.model_copy(update=changes))


def judge(learned: Path, split: PackedSplit) -> Judged:
    return evaluate(NAME, {"cpu": learned / NAME / "cpu" / records.MODEL}, split)


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
    store: Store, learned: Path, custom_files: CustomFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    source = NETWORK.replace("from parts import HIDDEN, nn", "from torch import nn\nHIDDEN = 8")
    source += "    def __reduce__(self):\n        raise RuntimeError('only through state_dict()')\n"
    custom_files.write("net.py", source)
    record_custom_code(learned)
    mirror(store, learned, with_models=True)
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
    mirror(store, custom_results)  # as `compare` does
    network = custom_files.folder / "net.py"
    network.write_text(f"{NETWORK}WIDTH = 2\n", encoding="utf-8")
    mirror(store, custom_results, with_models=True)
    assert f"{NAME}/cpu is logged without its model: net.py" in capsys.readouterr().err
    (run,) = store.find_runs()
    assert (run.info.status, run.outputs.model_outputs) == ("FINISHED", [])
    network.write_text(NETWORK, encoding="utf-8")
    mirror(store, custom_results, with_models=True)
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
    store: Store, learned: Path, packed_split: PackedSplit, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = judge(learned, packed_split)
    expected, scores = judged.predicted["cpu"], judged.evaluation.devices["cpu"]
    assert scores.test_accuracy > 0.9  # by chance, 1 in 3
    mirror(store, learned, with_models=True)
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

    (run,) = store.find_runs()
    model = store.client.get_logged_model(address.removeprefix("models:/"))
    assert (model.name, model.source_run_id) == (f"{NAME}-cpu", run.info.run_id)
    assert model.status == LoggedModelStatus.READY
    folder = Path(model.artifact_location.removeprefix("file://"))
    described = yaml.safe_load((folder / "MLmodel").read_text())
    assert (described["run_id"], described["model_id"]) == (run.info.run_id, model.model_id)
    example = (folder / "serving_input_example.json").read_text()
    assert predictions(ask_server(address, example)).shape == (1, 3)
