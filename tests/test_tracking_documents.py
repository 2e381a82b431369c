"""What MLflow should show of a run follows from the records alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import MakeExperiment, MakeResult
from result_files import trained, with_record, write_result, write_scores

from photofinish.comparing.device_results import Trained
from photofinish.errors import UserError
from photofinish.machine.fingerprint import AcceleratorFacts, CpuTarget, GpuTarget
from photofinish.results import records
from photofinish.tracking import documents
from photofinish.tracking.documents import RunDocument, report_document, run_facts, training_document


def document_of(results: Path) -> RunDocument:
    document = training_document("small-mlp", "cpu", results)
    assert document
    return document


def test_settings_become_flat_parameters(make_experiment: MakeExperiment) -> None:
    params = run_facts("small-mlp", "cpu", make_experiment(epochs=7), None, {}, None, None).params
    assert params["optimizer.lr"] == "0.1"
    assert params["model.name"] == "mlp"
    assert params["epochs"] == "7"
    assert params["device"] == "cpu"


def test_a_setting_with_keys_that_mlflow_does_not_take_is_one_parameter(make_experiment: MakeExperiment) -> None:
    weights = {"cats, dogs": 2.0, "other": 1.0}
    model = {"name": "./net.py:Net", "weights": weights, "größe": {"deep": 3}}
    params = run_facts("own", "cpu", make_experiment(model=model), None, {}, None, None).params
    assert params["model.weights"] == str(weights)
    assert params["model.größe.deep"] == "3"


@pytest.mark.parametrize("git_commit", [None, "c0ffee-dirty"])
def test_host_packages_and_commit_become_tags(
    make_experiment: MakeExperiment, cpu_host: CpuTarget, git_commit: str | None
) -> None:
    tags = run_facts("small-mlp", "cpu", make_experiment(), cpu_host, {"torch": "2.14.1"}, git_commit, None).tags
    assert cpu_host.cpu
    assert tags["host.cpu"] == cpu_host.cpu.model
    assert tags["package.torch"] == "2.14.1"
    assert tags.get("mlflow.source.git.commit") == ("c0ffee" if git_commit else None)
    assert tags.get("git.dirty") == ("true" if git_commit else None)


def test_the_accelerator_becomes_a_tag(make_experiment: MakeExperiment, cpu_host: CpuTarget) -> None:
    accelerator = AcceleratorFacts(kind="cuda", name="Some GPU", memory_bytes=None, driver="580.1")
    common = {"threads": 1, "cpu": cpu_host.cpu, "software": cpu_host.software}
    host = GpuTarget(**common, kind="auto", count=1, if_missing="skip", accelerators=(accelerator,), missing=None)
    tags = run_facts("small-mlp", "gpu", make_experiment(), host, {}, None, None).tags
    assert tags["host.accelerator"] == "Some GPU"
    assert tags["host.accelerator_driver"] == "580.1"


def test_every_epoch_has_a_point_of_each_metric_at_its_own_step_and_time(
    tmp_path: Path, make_result: MakeResult
) -> None:
    write_result(tmp_path, make_result(epoch_seconds=(2.0, 4.0)))
    points = document_of(tmp_path).points
    by_epoch = [{point.key for point in points if point.step == step} for step in (1, 2)]
    once = {point.key for point in points if point.step == documents.ONCE}
    assert by_epoch[0] == by_epoch[1]
    assert {"training_loss", "validation_loss", "validation_accuracy", "images_per_second"} < by_epoch[0]
    assert {"total_seconds", "median_epoch_seconds"} < once
    assert not once & by_epoch[0]
    assert len(points) == len({(point.key, point.step) for point in points})
    assert {point.timestamp_ms for point in points} == {1_700_000_000_000}
    assert [point.value for point in points if point.value == 600 / 4.0]  # images a second


def test_a_training_run_is_described_by_what_was_trained_how_well_and_how_fast(
    tmp_path: Path, make_result: MakeResult
) -> None:
    result = trained(make_result, accuracy=0.875)
    write_result(tmp_path, result)
    before = document_of(tmp_path).facts.tags["mlflow.note.content"]
    write_scores(tmp_path, result)
    after = document_of(tmp_path).facts.tags["mlflow.note.content"]
    for text in (before, after):
        assert all(part in text for part in ("mlp", "small", "Some CPU", "3 epochs of 3.0 s", "30 s"))
    assert "87.50% test accuracy" in after
    assert "accuracy" not in before


def test_a_run_begins_and_ends_when_the_training_did(tmp_path: Path, make_result: MakeResult) -> None:
    result = make_result()
    assert isinstance(result, Trained)
    ended = [replace(epoch, ended_at_unix_seconds=1.7e9 + number) for number, epoch in enumerate(result.timings.epochs)]
    write_result(tmp_path, replace(result, timings=result.timings.model_copy(update={"epochs": tuple(ended)})))
    document = document_of(tmp_path)
    assert (document.started_ms, document.ended_ms) == (1_700_000_000_000, 1_700_000_002_000)
    assert document.duration_ms == 30_000


def test_test_scores_complete_the_same_run_once_they_are_there(tmp_path: Path, make_result: MakeResult) -> None:
    result = make_result(accuracy=0.875)
    write_result(tmp_path, result)
    trained = document_of(tmp_path)
    write_scores(tmp_path, result)
    evaluated = document_of(tmp_path)
    assert evaluated.result == trained.result
    assert evaluated.mirrored != trained.mirrored
    (accuracy,) = {point.value for point in evaluated.points} - {point.value for point in trained.points} - {0.5, 0.7}
    assert accuracy == 0.875
    assert [folder for path, folder in evaluated.artifacts if path.name == records.EVALUATION] == ["evaluation"]


def test_scores_of_the_weights_before_are_not_shown_for_a_retrained_run(
    tmp_path: Path, make_result: MakeResult
) -> None:
    result = trained(make_result)
    write_result(tmp_path, result)
    write_scores(tmp_path, result)
    write_result(tmp_path, with_record(result, weights_sha256="e" * 64))
    document = document_of(tmp_path)
    assert not [point.key for point in document.points if point.key.startswith("test_")]
    assert not [path for path, _ in document.artifacts if path.name == records.EVALUATION]


def test_a_metric_of_one_s_own_does_not_take_the_place_of_the_accuracy(tmp_path: Path, make_result: MakeResult) -> None:
    result = make_result(accuracy=0.875)
    assert isinstance(result, Trained)
    write_result(tmp_path, result)
    metrics = {"accuracy": 0.25, "top": 0.9}
    write_scores(tmp_path, replace(result, scores=result.scores.model_copy(update={"metrics": metrics})))
    points = {point.key: point.value for point in document_of(tmp_path).points}
    assert (points["test_accuracy"], points["test_top"]) == (0.875, 0.9)


def test_the_scores_of_the_other_device_add_no_points(tmp_path: Path, make_result: MakeResult) -> None:
    write_result(tmp_path, make_result())
    points = document_of(tmp_path).points
    write_result(tmp_path, gpu := trained(make_result, device="gpu"))
    write_scores(tmp_path, gpu)
    assert document_of(tmp_path).points == points


@pytest.mark.parametrize("changed", [{"accuracy": 0.1}, {"total_seconds": 31.0}, {"initial_weights_sha256": "c" * 64}])
def test_what_training_left_tells_runs_apart(
    tmp_path: Path, make_result: MakeResult, changed: dict[str, float | str]
) -> None:
    write_result(tmp_path / "first", make_result())
    write_result(tmp_path / "again", make_result())
    write_result(tmp_path / "other", make_result(**changed))
    first, again, other = (document_of(tmp_path / name) for name in ("first", "again", "other"))
    assert first.result == again.result
    assert (first.result == other.result) == ("accuracy" in changed)  # a test score is no part of the training


def test_of_an_unavailable_device_there_is_nothing_to_show(tmp_path: Path, make_result: MakeResult) -> None:
    write_result(tmp_path, make_result(device="gpu", unavailable="no NVIDIA driver"))
    assert training_document("small-mlp", "gpu", tmp_path) is None


@pytest.mark.parametrize("file", [f"model/{records.RECORD}", f"model/{records.HISTORY}", f"timings/{records.TIMINGS}"])
@pytest.mark.parametrize("damage", [lambda path: path.write_text("{\nhalf"), Path.unlink])
def test_a_damaged_file_is_named(
    tmp_path: Path, make_result: MakeResult, file: str, damage: Callable[[Path], object]
) -> None:
    path = write_result(tmp_path, make_result()) / file
    damage(path)
    with pytest.raises((UserError, OSError), match=path.name):
        document_of(tmp_path)


def test_the_report_is_one_run_with_a_metric_for_each_figure_of_its_table(tmp_path: Path) -> None:
    table = "experiment,device,test_accuracy,epoch_seconds,total_seconds,epoch_speedup,end_to_end_speedup\n"
    (tmp_path / documents.REPORT_TABLE).write_text(table + "small,cpu,0.75,2.0,30.0,,\nsmall,gpu,,,,,\n")
    (tmp_path / "plots").mkdir()
    (tmp_path / "plots" / "loss.svg").write_text("<svg/>")
    document = report_document(tmp_path)
    assert {point.key: point.value for point in document.points} == {
        "small/cpu/test_accuracy": 0.75,
        "small/cpu/epoch_seconds": 2.0,
        "small/cpu/total_seconds": 30.0,
    }
    assert document.artifacts == [(tmp_path, "report")]
    (tmp_path / "plots" / "loss.svg").write_text("<svg></svg>")
    assert report_document(tmp_path).mirrored != document.mirrored
    assert report_document(tmp_path).result == document.result
