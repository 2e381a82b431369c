"""What is on disk is shown in MLflow exactly once, whatever MLflow had of it before."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from conftest import MakeResult
from mlflow.entities import Run
from mlflow.exceptions import MlflowException
from result_files import write_result, write_scores, write_trained
from safetensors.torch import load_file

from photofinish.comparing.device_results import Trained
from photofinish.errors import UserError
from photofinish.models.registry import build_model
from photofinish.results import records
from photofinish.tracking import documents, mirror, mlflow_worker
from photofinish.tracking.documents import Point, RunDocument, training_document
from photofinish.tracking.mirror import create_run, write_points
from photofinish.tracking.store import Process, Store
from photofinish.tracking.sync import sync_all, sync_experiments

# sqlite3 and MLflow's readers of old formats warn about themselves
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore:.*unpickl.*", "ignore::DeprecationWarning")

NAME = "small-mlp"


@pytest.fixture
def results(tmp_path: Path, make_result: MakeResult) -> Path:
    """A training on the CPU with its weights, and no accelerator."""
    result = make_result(NAME)
    assert isinstance(result, Trained)
    write_trained(tmp_path / "results", result)
    write_result(tmp_path / "results", make_result(NAME, "gpu", unavailable="no accelerator"))
    return tmp_path / "results"


def run_on(store: Store, device: str) -> Run:
    """The one run of this device."""
    (run,) = store.find_runs(f"tags.`{documents.TAG_DEVICE}` = '{device}'")
    return run


def document_of(results: Path) -> RunDocument:
    document = training_document(NAME, "cpu", results)
    assert document
    return document


def steps(store: Store, run: Run) -> Counter[tuple[str, int]]:
    run_id = run.info.run_id
    return Counter(
        (key, metric.step) for key in run.data.metrics for metric in store.client.get_metric_history(run_id, key)
    )


def artifacts(store: Store, run: Run, folder: str = "") -> set[str]:
    found: set[str] = set()
    for file in store.client.list_artifacts(run.info.run_id, folder):
        found |= artifacts(store, run, file.path) if file.is_dir else {file.path}
    return found


def test_a_result_is_mirrored_once_and_completely(store: Store, results: Path, make_result: MakeResult) -> None:
    write_scores(results, make_result(NAME))
    assert sync_experiments(store, [NAME], results) == 1
    assert sync_experiments(store, [NAME], results) == 0
    run, document = run_on(store, "cpu"), document_of(results)
    assert run.info.run_name == f"{NAME}/cpu"
    assert (run.info.status, run.info.start_time) == ("FINISHED", document.started_ms)
    assert run.info.end_time - run.info.start_time == 30_000  # of the whole job
    assert run.data.tags["mlflow.user"] == psutil.Process().username()
    assert run.data.params == document.facts.params
    assert document.facts.tags.items() <= run.data.tags.items()
    assert run.data.tags[documents.TAG_RESTORED] == "true"
    assert steps(store, run) == Counter((point.key, point.step) for point in document.points)
    assert artifacts(store, run) >= {
        *(f"model/{name}" for name in (records.RECORD, records.HISTORY, records.WEIGHTS)),
        f"timings/{records.TIMINGS}",
        f"evaluation/{records.EVALUATION}",
    }
    (dataset,) = run.inputs.dataset_inputs
    assert (dataset.dataset.name, dataset.dataset.digest) == ("small", "d" * 36)
    assert len(run.outputs.model_outputs) == 1


def test_the_run_of_the_result_on_disk_is_marked_also_when_an_earlier_one_comes_back(
    store: Store, results: Path
) -> None:
    timings_file = results / NAME / "cpu" / records.TIMINGS_FOLDER / records.TIMINGS
    timings = records.read_record(timings_file, records.Timings)
    for total_seconds in (30.0, 40.0, 30.0):  # as `dvc checkout` brings a result back
        records.write_record(timings_file, timings.model_copy(update={"total_seconds": total_seconds}))
        sync_experiments(store, [NAME], results)
        current = {run.data.metrics["total_seconds"]: run.data.tags["photofinish.current"] for run in store.find_runs()}
        assert current.pop(total_seconds) == "true"
        assert set(current.values()) <= {"false"}
    assert len(store.find_runs()) == 2


@pytest.mark.parametrize("told", [0, 5])
def test_a_run_that_mlflow_was_told_in_part_is_completed_with_no_step_twice(
    store: Store, results: Path, told: int
) -> None:
    document = document_of(results)
    assert document.started_ms
    tags = {documents.TAG_PROCESS: gone_process(document.started_ms / 1000)}
    run_id = create_run(store, document.facts, tags)
    earlier = [replace(point, timestamp_ms=point.timestamp_ms - 5) for point in document.points[:told]]
    write_points(store.client, run_id, earlier)  # MLflow would show the same step with two times twice
    sync_experiments(store, [NAME], results)
    run = run_on(store, "cpu")
    assert (run.info.run_id, run.info.status) == (run_id, "FINISHED")
    assert documents.TAG_RESTORED not in run.data.tags
    assert steps(store, run) == Counter((point.key, point.step) for point in document.points)
    assert sync_experiments(store, [NAME], results) == 0


def test_a_resumed_training_goes_on_with_its_run_and_repeats_no_step_of_the_system_metrics(
    store: Store, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts, key = document_of(results).facts, "system/cpu_utilization_percentage"
    run_id = create_run(store, facts, {documents.TAG_TRAINING_KEY: "its", documents.TAG_PROCESS: gone_process(1.7e9)})
    write_points(store.client, run_id, [Point(key, 50.0, step, 1_700_000_000_000) for step in range(3)])
    monkeypatch.setattr(mlflow_worker, "open_store", lambda *_: store)
    mlflow_worker.open_project()
    mlflow_worker.start(facts, "its", 0)
    mlflow_worker.training_ended(NAME, "cpu", results, [])
    run = run_on(store, "cpu")
    assert (run.info.run_id, run.info.status) == (run_id, "FINISHED")
    assert sorted(metric.step for metric in store.client.get_metric_history(run_id, key)) == [0, 1, 2, 3]


def test_a_figure_that_has_changed_is_the_one_that_mlflow_shows(store: Store, results: Path) -> None:
    """As of epochs that a resumed training went through again, or of an evaluation made anew."""
    document = document_of(results)
    assert document.started_ms
    run_id = create_run(store, document.facts, {documents.TAG_PROCESS: gone_process(document.started_ms / 1000)})
    write_points(store.client, run_id, [replace(point, value=point.value + 1) for point in document.points])
    sync_experiments(store, [NAME], results)
    last = {point.key: point.value for point in document.points}
    shown = run_on(store, "cpu").data.metrics
    assert {key: shown[key] for key in last} == last


def test_a_run_that_is_cut_off_at_its_first_word_is_found_again(
    store: Store, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither running for ever nor shown twice."""

    def cut_off(*_: Any) -> None:
        raise MlflowException("the server went away")

    with monkeypatch.context() as patch:
        patch.setattr(mirror, "write_facts", cut_off)
        with pytest.raises(MlflowException):
            sync_experiments(store, [NAME], results)
    sync_experiments(store, [NAME], results)
    of_the_result = [run for run in store.find_runs() if run.data.tags.get(documents.TAG_DEVICE) == "cpu"]
    assert [run.info.status for run in of_the_result] == ["FINISHED"]
    assert len(store.find_runs("attributes.status = 'RUNNING'")) == 0


@pytest.mark.parametrize("began_seconds", [-100.0, 100.0])
def test_an_earlier_or_later_attempt_is_not_taken_for_the_run_of_a_result(
    store: Store, results: Path, began_seconds: float
) -> None:
    document = document_of(results)
    run_id = create_run(store, document.facts, {documents.TAG_PROCESS: gone_process(1.7e9 + began_seconds)})
    sync_experiments(store, [NAME], results)
    runs = {run.info.run_id: run.info.status for run in store.find_runs(f"tags.`{documents.TAG_DEVICE}` = 'cpu'")}
    assert runs.pop(run_id) == "KILLED"
    assert list(runs.values()) == ["FINISHED"]


def test_a_result_whose_training_process_is_still_telling_it_is_left_to_that_process(
    store: Store, results: Path
) -> None:
    timings_file = results / NAME / "cpu" / records.TIMINGS_FOLDER / records.TIMINGS
    timings = records.read_record(timings_file, records.Timings)
    began_seconds = psutil.Process().create_time()
    epochs = tuple(replace(epoch, ended_at_unix_seconds=began_seconds + 1) for epoch in timings.epochs)
    lasting = {"started_at_unix_seconds": began_seconds - 1, "epochs": epochs}
    records.write_record(timings_file, timings.model_copy(update=lasting))
    create_run(store, document_of(results).facts, {documents.TAG_PROCESS: Process.own().as_tag()})
    sync_experiments(store, [NAME], results)
    assert run_on(store, "cpu").info.status == "RUNNING"


@pytest.mark.parametrize(
    ("process", "status"),
    [
        ("gone", "KILLED"),
        ("another with the same id", "KILLED"),
        ("of another machine", "RUNNING"),
        ("this", "RUNNING"),
        ("unknown", "RUNNING"),
    ],
)
def test_a_run_left_running_is_closed_only_if_its_process_is_gone(store: Store, process: str, status: str) -> None:
    run_id = str(store.client.create_run(store.experiment_id).info.run_id)
    tags = {
        "gone": gone_process(1.7e9),
        "another with the same id": json.dumps([platform.node(), os.getpid(), 1.7e9]),
        "of another machine": json.dumps([f"not-{platform.node()}", os.getpid(), 1.7e9]),
        "this": Process.own().as_tag(),
    }
    if process in tags:
        store.client.set_tag(run_id, documents.TAG_PROCESS, tags[process])
    store.close_abandoned_runs()
    assert store.client.get_run(run_id).info.status == status


@pytest.fixture
def to_device(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Filled with the artifact folders that are sent to MLflow."""
    to_device: list[str] = []
    for name in ("log_artifact", "log_artifacts"):
        original = getattr(store.client, name)

        def note(run_id: str, path: str, folder: str, original: Any = original) -> None:
            original(run_id, path, folder)
            to_device.append(folder)

        monkeypatch.setattr(store.client, name, note)
    return to_device


def test_scores_that_come_later_complete_the_same_run_and_only_they_are_sent(
    store: Store, results: Path, make_result: MakeResult, to_device: list[str]
) -> None:
    sync_experiments(store, [NAME], results)
    trained = run_on(store, "cpu")
    assert to_device == ["model", "timings"]
    for accuracy in (0.75, 0.5):
        to_device.clear()
        write_scores(results, make_result(NAME, accuracy=accuracy))
        assert sync_experiments(store, [NAME], results) == 1
        assert to_device == ["evaluation"]
    evaluated = run_on(store, "cpu")
    assert evaluated.info.run_id == trained.info.run_id
    assert len(evaluated.data.metrics) == len(trained.data.metrics) + 3
    assert len(evaluated.outputs.model_outputs) == 1
    assert {key for (key, _), times in steps(store, evaluated).items() if times > 1} == {"test_accuracy"}
    assert sync_experiments(store, [NAME], results) == 0


def test_what_was_cut_off_is_sent_when_mlflow_is_back(
    store: Store, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        log_artifacts = store.client.log_artifacts

        def fail_at_timings(run_id: str, path: str, folder: str) -> None:
            if folder == "timings":
                raise ConnectionError("gone")
            log_artifacts(run_id, path, folder)

        patched.setattr(store.client, "log_artifacts", fail_at_timings)
        with pytest.raises(ConnectionError):
            sync_experiments(store, [NAME], results)
    sync_experiments(store, [NAME], results)
    files = {path.relative_to(results / NAME / "cpu").as_posix() for path in (results / NAME / "cpu").rglob("*.*")}
    assert artifacts(store, run_on(store, "cpu")) >= files


@pytest.mark.parametrize("lost", ["mlruns", "one artifact", "the model"])
def test_files_that_were_deleted_come_back_in_the_same_run(
    store: Store, results: Path, tmp_path: Path, lost: str
) -> None:
    sync_experiments(store, [NAME], results)
    before = run_on(store, "cpu")
    files = {path for path in (tmp_path / "mlruns").rglob("*") if path.is_file()}
    if lost == "mlruns":
        shutil.rmtree(tmp_path / "mlruns")
    else:
        next(path for path in files if path.name == ("MLmodel" if lost == "the model" else records.WEIGHTS)).unlink()
    assert sync_experiments(store, [NAME], results) == 1
    assert {path for path in (tmp_path / "mlruns").rglob("*") if path.is_file()} == files
    after = run_on(store, "cpu")
    assert after.info.run_id == before.info.run_id
    assert [output.model_id for output in after.outputs.model_outputs] == [
        output.model_id for output in before.outputs.model_outputs
    ]
    assert sync_experiments(store, [NAME], results) == 0


def test_the_model_loads_without_an_accelerator_and_answers_as_the_weights_do(
    store: Store, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow.pytorch

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    sync_experiments(store, [NAME], results)
    (output,) = run_on(store, "cpu").outputs.model_outputs
    loaded = mlflow.pytorch.load_model(f"models:/{output.model_id}")
    learned = results / NAME / "cpu" / records.MODEL
    record = records.read_record(learned / records.RECORD, records.Training)
    network = build_model(record.experiment.model, (1, 8, 8), 2, seed=0)
    network.load_state_dict(load_file(learned / records.WEIGHTS))
    images = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    (mean,), (std,) = record.mean, record.std
    assert torch.equal(loaded(images), network.eval()((images - mean) / std))
    assert mlflow.pyfunc.load_model(f"models:/{output.model_id}").predict(images.numpy()).shape == (5, 2)


def test_damaged_weights_are_named(store: Store, results: Path) -> None:
    path = results / NAME / "cpu" / records.MODEL / records.WEIGHTS
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(UserError, match=rf"{path} is damaged"):
        sync_experiments(store, [NAME], results)


def test_the_report_is_one_run_that_follows_its_changes(store: Store, tmp_path: Path) -> None:
    report = tmp_path / "report"
    assert sync_all(store, [], tmp_path, report) == 0
    report.mkdir()
    row = dict.fromkeys(("test_accuracy", "epoch_seconds", "total_seconds", "epoch_speedup", "end_to_end_speedup"), "")
    row |= {"experiment": NAME, "device": "cpu", "test_accuracy": "0.75"}
    table = report / documents.REPORT_TABLE
    table.write_text(f"{','.join(row)}\n{','.join(row.values())}\n", encoding="utf-8")
    assert [sync_all(store, [], tmp_path, report) for _ in range(2)] == [1, 0]
    (run,) = store.find_runs()
    assert run.data.metrics == {f"{NAME}/cpu/test_accuracy": 0.75}
    assert artifacts(store, run) == {f"report/{documents.REPORT_TABLE}"}
    table.write_text(table.read_text(encoding="utf-8").replace("0.75", "0.8"), encoding="utf-8")
    assert sync_all(store, [], tmp_path, report) == 1
    (run,) = store.find_runs()
    assert run.data.metrics == {f"{NAME}/cpu/test_accuracy": 0.8}


def gone_process(began_at_unix_seconds: float) -> str:
    """The tag of a process that has ended."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return json.dumps([platform.node(), ended.pid, began_at_unix_seconds])
