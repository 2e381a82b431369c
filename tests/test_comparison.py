"""Results read from disk, the tables that are made of them, and the answer as users read it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import MakeResult
from outputs import comparison_rows, record_of, verdict
from planted_jobs import (
    SCORES,
    compared,
    lasting,
    make_job,
    make_model,
    with_values,
)
from result_files import (
    BUSY,
    DeviceResult,
    made_up_attribution,
    measured_of,
    paired,
    read_pair,
    text_of,
    trained,
    whole_epoch,
    with_timings,
    write_result,
    write_results,
)

from photofinish.answer.diagnosis import BUSY as BUSY_STEPS
from photofinish.answer.times import job_time
from photofinish.errors import UserError
from photofinish.reporting.answer_words import legend
from photofinish.reporting.report import history_rows
from photofinish.reporting.tables import comparison_metrics, figures_table
from photofinish.results import records
from photofinish.results.measured import Measured, NotMeasured, read_trained, write_measured
from photofinish.results.trained import DEVICE_LABELS, DeviceLabel, SeedRun
from photofinish.tracking.documents import training_document

REASON = "no accelerator: cuda: no driver"
APART = made_up_attribution(0.05)


@pytest.fixture
def pair(make_result: MakeResult) -> list[DeviceResult]:
    """Make a CPU with a median epoch of 3 s, 30 s in all, and a GPU with 0.5 s and 20 s."""
    gpu = make_result(
        device="gpu", epoch_seconds=(0.25, 0.5, 4.0), total_seconds=20.0, device_name="Some GPU"
    )
    return [make_result(), gpu]


@pytest.fixture
def without_gpu(make_result: MakeResult) -> list[DeviceResult]:
    return [make_result(), make_result(device="gpu", unavailable=REASON)]


def test_a_measured_figure_is_in_the_csv_on_the_page_and_in_mlflow(
    make_result: MakeResult, tmp_path: Path
) -> None:
    cpu = with_timings(trained(make_result), peak_memory_bytes=3 << 30)
    (pair,) = paired([cpu, make_result(device="gpu", unavailable=REASON)])
    assert comparison_rows([pair])[0]["peak_memory_bytes"] == 3 << 30
    assert {"": "memory (peak)", "CPU": "3.0 GiB"} in figures_table(record_of(pair))
    write_result(tmp_path, cpu)
    document = training_document("small-mlp", "cpu", tmp_path)
    assert ("peak_memory_bytes", 3 << 30) in {(m.key, m.value) for m in document.metrics}
    assert "median_step_seconds" in {metric.key for metric in document.metrics}


@pytest.mark.parametrize("results", ["pair", "without_gpu"])
def test_results_are_read_as_they_were_written(
    results: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    written: list[DeviceResult] = request.getfixturevalue(results)
    written[0] = replace(written[0], measured_load=(BUSY,))
    write_results(written, tmp_path)
    read = read_pair("small-mlp", tmp_path / "small-mlp")
    assert comparison_rows([read]) == comparison_rows(paired(written))
    assert history_rows([record_of(read)]) == history_rows(map(record_of, paired(written)))
    of_written = paired(written)[0]
    for job, other in zip(read.runs, of_written.runs, strict=True):
        assert (job.settings, job.busy) == (other.settings, other.busy)
        assert job.step_warnings == other.step_warnings


def test_a_record_that_cannot_be_read_is_named(pair: list[DeviceResult], tmp_path: Path) -> None:
    write_results(pair, tmp_path)
    path = tmp_path / "small-mlp/cpu/model/record.json"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(UserError, match=f"{path} .* can be read: run `dvc repro`"):
        read_pair("small-mlp", tmp_path / "small-mlp")


@pytest.mark.parametrize("lacks", ["its weights", "a seed"])
def test_a_result_without_scores_of_its_weights_is_named(
    pair: list[DeviceResult], tmp_path: Path, lacks: str
) -> None:
    write_results(pair, tmp_path)
    path = tmp_path / "small-mlp" / records.EVALUATED / records.EVALUATION
    evaluation = records.read_record(path, records.Evaluation)
    devices = dict(evaluation.devices)
    if lacks == "its weights":
        devices["gpu"] = devices["gpu"].model_copy(update={"weights_sha256": "e" * 64})
    else:
        run = SeedRun(seed=1, weights_sha256="c" * 64, history=())
        learned = tmp_path / "small-mlp" / "gpu" / records.MODEL
        record = records.read_training(learned)
        several = record.experiment.model_copy(update={"seeds": 2})
        record = record.model_copy(update={"experiment": several})
        records.write_record(learned / records.RECORD, record)
        records.write_record(learned / "seeds.json", records.FurtherSeeds(runs=(run,)))
    records.write_record(path, evaluation.model_copy(update={"devices": devices}))
    with pytest.raises(UserError, match=r"evaluation\.json has no scores .* gpu"):
        read_pair("small-mlp", tmp_path / "small-mlp")


def test_a_gpus_times_stand_with_their_ratios_and_intervals() -> None:
    passes = (3.0, 3.1, 3.1, 3.1, 3.2)
    cpu = make_job(passes, seconds=30.0, trained=make_model())
    scores = SCORES.model_copy(update={"test_accuracy": 0.5})
    gpu = make_job((0.6,) * 5, "gpu", seconds=30.0, trained=make_model("gpu", scores=scores))
    answer = verdict(compared(cpu, gpu))
    assert (answer.job.name, answer.job.why_no_gpu) == ("small-mlp", None)
    assert (
        "An epoch takes 500 ms on Some GPU and 3 s on Some CPU: 6.0x faster (5.0 to 7.2); the "
        "GPU is faster."
    ) in text_of(answer)
    assert "Test accuracy is 50.00% on the GPU and 75.00% on the CPU." in text_of(answer)


@pytest.mark.parametrize(
    ("device", "busy", "stage"),
    [("cpu", "load", "train-cpu"), ("gpu", "load", "train-gpu"), ("cpu", "steps", "measure-cpu")],
)
def test_only_the_stage_that_was_busy_is_doubted_and_run_again(
    device: DeviceLabel, busy: str, stage: str
) -> None:
    load = {"load": (BUSY,)} if busy == "load" else {"measured_load": (BUSY,)}
    jobs = {of: make_job((3.1,) * 5, of, attribution=APART) for of in DEVICE_LABELS}
    jobs[device] = make_job((3.1,) * 5, device, attribution=APART, **load)
    pair = compared(jobs["cpu"], jobs["gpu"])
    assert (job_time(jobs[device]).interval[1] == math.inf) is (busy == "load")
    assert (pair.causes[device][0].not_known == BUSY_STEPS) is (busy == "steps")
    text = text_of(verdict(pair))
    assert "for 100% of the run, other programs used 40% of the cores" in text
    assert (f"so the {device.upper()}'s times may be too long" in text) is (busy == "load")
    assert f"photofinish run --force --single-item {stage}@small-mlp && photofinish run" in text


def test_a_step_that_was_timed_beside_others_is_not_shown_beside_quiet_epochs() -> None:
    slow = {"parts": [whole_epoch(30.0, 37.5, 3.0)], "step_seconds": (0.8,), "attribution": APART}
    jobs = [make_job((3.1,) * 5, of, **slow) for of in DEVICE_LABELS]
    busy = replace(jobs[0], step_warnings=("others",))
    quiet, beside, all_busy = (
        record_of(compared(cpu, jobs[1]))
        for cpu in (jobs[0], busy, replace(busy, busy=("others",)))
    )
    for record in (quiet, all_busy):
        assert record.figures["cpu"]["step_seconds"] == 0.8
        assert {"step", "epoch"} <= set(record.speedups)
        assert record.steps["cpu"].seconds == pytest.approx(0.8)
    figures = beside.figures["cpu"]
    assert (figures["step_seconds"], figures["epoch_seconds"]) == (None, 3.0)
    assert beside.steps["cpu"].seconds == pytest.approx(3.0 / 37.5)
    assert beside.steps["cpu"].shares == quiet.steps["cpu"].shares
    assert list(comparison_metrics(beside)["cpu"])[:2] == ["epoch_seconds", "total_seconds"]
    assert [*beside.speedups] == ["epoch", "end_to_end"]
    lines = [line for line in legend([quiet, beside], [], is_asked=False) if "busy" in line]
    assert len(lines) == 1
    assert "the steps of small-mlp were measured" in lines[0]


@pytest.mark.parametrize("changed", ["data", "settings", "missing"])
def test_a_measurement_that_is_not_of_the_training_names_the_stage_to_run(
    make_result: MakeResult, tmp_path: Path, changed: str
) -> None:
    result = trained(make_result)
    folder = write_result(tmp_path, result)
    experiment, record = result.record.experiment, result.record
    others = {
        "seed": record.model_copy(update={"experiment": experiment.model_copy(update={"seed": 8})}),
        "data": record.model_copy(update={"data_sha256": "e" * 64}),
        "settings": record.model_copy(
            update={"experiment": experiment.model_copy(update={"batch_size": 7})}
        ),
    }
    measured = measured_of(result)
    seed = measured.model_copy(update={"training": others["seed"]})
    write_measured(folder / "measured", seed)
    assert read_trained(folder)
    other: Measured | NotMeasured = NotMeasured(job="small-mlp", device="cpu", reason="none")
    if changed in others:
        other = measured.model_copy(update={"training": others[changed]})
    write_measured(folder / "measured", other)
    with pytest.raises(UserError, match=r"`photofinish run .*measure-cpu@small-mlp`"):
        read_trained(folder)
    assert training_document("small-mlp", "cpu", tmp_path)  # MLflow shows the training


def test_doubtful_results_have_cautions() -> None:
    models = make_model(), make_model("gpu")
    cpu, gpu = lasting(30.0, trained=models[0]), lasting(30.0, "gpu", trained=models[1])
    assert verdict(compared(cpu, gpu)).cautions == ()
    resumed = replace(models[1], resumed_at_epochs=(1,))
    elsewhere = replace(gpu, trained=resumed, interruptions=1, host_name="another bench")
    loose = with_values(deterministic="False")
    cautions = verdict(compared(replace(cpu, settings=loose), elsewhere)).cautions
    for words in ("interrupted", "deterministic: false", "workbench and another bench"):
        assert sum(words in caution for caution in cautions) == 1


def test_the_epochs_cause_comes_before_the_jobs() -> None:
    assert not any("Why" in detail for detail in verdict(compared(lasting(30.0))).details)
    waits = {"waiting_seconds": 0.05, "attribution": APART}
    slow = make_job((3.1,) * 3, startup_seconds=25.0, seconds=40.0, **waits)
    why = verdict(compared(slow)).details[-1]
    assert why.startswith("On the CPU, gathering batches takes 62% of an epoch")
    assert why.endswith(" Also, start-up is 62% of the job's 40 s.")


def test_without_a_gpu_and_a_bound_nothing_can_be_told() -> None:
    pair = compared(make_job((3.1,) * 3, seconds=30.0, trained=make_model()))
    answer = verdict(pair)
    assert answer.answer == "No, don't rent: 30 s here, and setting up a machine takes 5 min."
    assert answer.details[0] == (
        "Trained on Some CPU to 75.00% test accuracy in 30 s, 2.5 s of that start-up."
    )


def test_the_main_score_is_the_users_first_metric_or_one_that_fits_the_task() -> None:
    own = {"main": "top_3", "metrics": {"auc": 0.5, "top_3": 0.9}}
    assert SCORES.model_copy(update=own).in_words == "top 3 0.9"
    assert SCORES.model_copy(update={"main": "macro_f1"}).in_words == "macro F1 0.7"
    assert SCORES.in_words == "75.00% test accuracy"
