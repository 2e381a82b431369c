"""Content of MLflow's runs follows from the records alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from conftest import MakeExperiment, MakeResult
from result_files import BUSY, trained, with_record, write_result, write_scores

from photofinish.config.experiment import ExperimentPlan
from photofinish.results import records
from photofinish.results.figures import FIGURES
from photofinish.tracking import documents, run_metrics
from photofinish.tracking.documents import RunDocument, run_params, training_document


def document_of(results: Path) -> RunDocument:
    document = training_document("small-mlp", "cpu", results)
    assert document
    return document


def values(document: RunDocument) -> dict[str, float]:
    return {metric.key: metric.value for metric in document.metrics}


def test_settings_become_flat_parameters(make_experiment: MakeExperiment) -> None:
    weights = {"cats, dogs": 2.0, "other": 1.0}  # MLflow refuses a comma in a key
    model = {"name": "./net.py:Net", "weights": weights, "größe": {"deep": 3}}
    params = run_params(make_experiment(epochs=7, model=model), "cpu")
    expected = {
        "optimizer.lr": "0.1",
        "epochs": "7",
        "device": "cpu",
        "model.weights": str(weights),
        "model.größe.deep": "3",
    }
    assert expected.items() <= params.items()
    plan = ExperimentPlan.model_validate(make_experiment(epochs=7, model=model).model_dump())
    assert run_params(plan, "cpu") == params  # of a run while it trains


def test_a_report_of_an_older_photofinish_has_no_answers(tmp_path: Path) -> None:
    (tmp_path / documents.REPORT_TABLE).write_text("experiment,device\none,cpu\n")
    answers = json.dumps({"answers": {"one": {"answer": "No"}}})
    (tmp_path / documents.REPORT_ANSWERS).write_text(answers)
    assert documents.answers_of(tmp_path) == {}


def test_every_epoch_has_a_value_of_each_metric_at_its_own_step_and_time(
    tmp_path: Path, make_result: MakeResult
) -> None:
    write_result(tmp_path, make_result(epoch_seconds=(2.0, 4.0)))
    document = document_of(tmp_path)
    steps: dict[int, set[str]] = {run_metrics.ONCE: set(), 1: set(), 2: set()}
    for metric in document.metrics:
        assert metric.key not in steps[metric.step]
        steps[metric.step].add(metric.key)
        assert metric.timestamp == 1_700_000_000_000
    assert steps[1] == steps[2]
    assert {"training_loss", "validation_loss", "images_per_second"} < steps[1]
    once = {figure.mlflow for figure in FIGURES if figure.mlflow}
    assert once - {"peak_memory_bytes", "peak_host_memory_bytes"} <= steps[run_metrics.ONCE]
    assert not steps[run_metrics.ONCE] & steps[1]
    assert values(document)["images_per_second"] == 600 / 4.0
    assert (document.started_ms, document.duration_ms) == (1_700_000_000_000, 30_000)


def test_a_training_is_described_with_its_own_answer_only(
    tmp_path: Path, make_result: MakeResult
) -> None:
    write_result(tmp_path, make_result())
    header = "experiment,device,answer,answer_reason,measured_at_unix_seconds"
    for began, is_its in ((1.7e9, True), (1.6e9, False)):
        row = f"small-mlp,cpu,No,start-up,{began}"
        (tmp_path / documents.REPORT_TABLE).write_text(f"{header}\n{row}\n")
        lines = ["No, don't rent: 60 s here.", "Next: stay on this CPU."]
        shown = [{"job": "small-mlp", "verdict": "No, don't rent", "saves": "0-2 s"}]
        found = {"answers": {"small-mlp": {"answer": "No", "lines": lines}}, "overview": shown}
        (tmp_path / documents.REPORT_ANSWERS).write_text(json.dumps(found))
        answers = documents.answers_of(tmp_path)
        document = training_document("small-mlp", "cpu", tmp_path, answers)
        assert document
        is_answered = document.tags[documents.TAG_NOTE].startswith("\n\n".join(lines))
        assert is_answered is is_its
        columns = [document.tags.get(tag) for tag in ("verdict", "time", "saves")]
        assert columns == (["No, don't rent", "30 s", "0-2 s"] if is_its else [None, "30 s", None])
        assert (document.mirrored != document_of(tmp_path).mirrored) is is_its
    assert documents.answers_of(tmp_path / "none") == {}


def test_a_busy_run_says_so_with_the_command_that_measures_again(
    tmp_path: Path, make_result: MakeResult
) -> None:
    for load, warning in (((), None), ((BUSY,), "other programs used 40% of the cores")):
        write_result(tmp_path, make_result(load=load))
        tags = document_of(tmp_path).tags
        assert (warning or "") in tags.get(documents.TAG_BUSY, "")
        command = "`photofinish run --force --single-item train-cpu@small-mlp && photofinish run`"
        assert (
            (command in tags[documents.TAG_NOTE]) is (documents.TAG_BUSY in tags) is bool(warning)
        )


def test_test_scores_complete_the_same_run_and_its_description(
    tmp_path: Path, make_result: MakeResult
) -> None:
    result = trained(make_result, accuracy=0.875)
    write_result(tmp_path, result)
    before = document_of(tmp_path)
    metrics = {"accuracy": 0.25, "top": 0.9}  # a custom metric does not replace the accuracy
    scores = result.scores.model_copy(update={"metrics": metrics})
    write_scores(tmp_path, replace(result, scores=scores))
    after = document_of(tmp_path)
    assert after.result == before.result
    assert after.mirrored != before.mirrored
    shown = values(after)
    assert (shown["test_accuracy"], shown["test_top"]) == (0.875, 0.9)
    assert not [key for key in values(before) if key.startswith("test_")]
    notes = [document.tags[documents.TAG_NOTE] for document in (before, after)]
    for part in ("mlp", "small", "Some CPU", "3 epochs of 3 s", "30 s"):
        assert part in notes[0]
        assert part in notes[1]
    assert [("87.50% test accuracy" in note) for note in notes] == [False, True]


def test_scores_of_other_weights_or_of_the_other_device_are_not_shown(
    tmp_path: Path, make_result: MakeResult
) -> None:
    result = trained(make_result)
    write_result(tmp_path, result)
    unjudged = document_of(tmp_path)
    write_result(tmp_path, gpu := trained(make_result, device="gpu"))
    write_scores(tmp_path, gpu)
    assert values(document_of(tmp_path)) == values(unjudged)
    write_scores(tmp_path, result)
    write_result(tmp_path, with_record(result, weights_sha256="e" * 64))
    document = document_of(tmp_path)
    assert values(document) == values(unjudged)
    assert records.EVALUATION not in {path.name for path, _ in document.files}


def test_a_missing_device_or_an_incomplete_result_has_no_run(
    tmp_path: Path, make_result: MakeResult
) -> None:
    write_result(tmp_path, make_result(device="gpu", unavailable="no NVIDIA driver"))
    folder = write_result(tmp_path, make_result())
    (folder / records.TIMINGS_FOLDER / records.TIMINGS).unlink()
    assert training_document("small-mlp", "gpu", tmp_path) is None
    assert training_document("small-mlp", "cpu", tmp_path) is None
