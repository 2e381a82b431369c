"""Records of other machines: shown only beside the same training, and without anything private."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, MakeResult
from outputs import record_of
from planted_jobs import FIRST_STEP, compared, history_of, lasting, make_model
from result_files import (
    BUSY,
    DeviceResult,
    paired,
    trained,
    with_record,
    with_timings,
    write_result,
    write_scores,
)

from photofinish.answer.word import decide_rented
from photofinish.commands import pipeline
from photofinish.config.experiment import Optimizer, Schedule
from photofinish.config.loader import read_params
from photofinish.config.losses_and_metrics import EarlyStopping
from photofinish.config.networks import CustomModel
from photofinish.errors import UserError
from photofinish.reporting.answer_words import model_text
from photofinish.reporting.tables import references_table
from photofinish.results.job import Job
from photofinish.results.measured import TrainedRecords
from photofinish.results.measured_jobs import job_settings
from photofinish.results.records import TrainingRecord
from photofinish.results.references import Reference, read_references, reference_of, write_reference
from photofinish.results.trained import FirstStep
from photofinish.results.training_jobs import job_of_reference

FIVE = (3.0,) * 5


@pytest.fixture
def gpu_elsewhere(make_result: MakeResult) -> TrainedRecords:
    name = "NVIDIA Made-Up 100(TM)"
    return trained(make_result, device="gpu", epoch_seconds=(0.5,) * 5, device_name=name)


@pytest.fixture
def here(make_result: MakeResult) -> list[DeviceResult]:
    """Results of a machine without a GPU."""
    cpu = make_result(epoch_seconds=FIVE)
    return [cpu, make_result(device="gpu", epoch_seconds=FIVE, unavailable="no driver")]


def recorded(result: TrainedRecords, machine: str | None = None) -> Reference:
    return reference_of(result, machine)


def steps_key(record: TrainingRecord) -> str:
    return job_settings(record).steps_key


def elsewhere(here: list[DeviceResult], *references: Reference) -> list[Job]:
    return [each for pair in paired(here, None, references) for each in pair.references]


def with_settings(result: TrainedRecords, **settings: Any) -> TrainedRecords:
    return with_record(result, experiment=result.record.experiment.model_copy(update=settings))


def test_a_reference_reads_back_with_every_figure_and_without_the_host(
    gpu_elsewhere: TrainedRecords, tmp_path: Path
) -> None:
    written = recorded(gpu_elsewhere)
    path = write_reference(tmp_path, written)
    assert path == tmp_path / "nvidia-made-up-100" / "small-mlp.gpu.json"
    assert read_references(tmp_path, "all") == [written]
    assert "workbench" not in path.read_text(encoding="utf-8")
    assert written.timings.epochs == gpu_elsewhere.times.epochs
    assert list(written.history) == list(gpu_elsewhere.history)


def test_private_variables_paths_and_code_are_left_out_and_the_training_is_still_the_same(
    gpu_elsewhere: TrainedRecords, tmp_path: Path
) -> None:
    variables = {
        "LD_PRELOAD": "/home/jane/lib.so",
        "CUDA_VISIBLE_DEVICES": "GPU-1234",
        "OMP_NUM_THREADS": "4",
    }
    host = gpu_elsewhere.times.host
    host = host.model_copy(update={"software": replace(host.software, variables=variables)})
    code = {"net.py": "a", "../jane/lib/layers.py": "b", "package torch": "2"}
    files = {"vocabulary": "~jane/words.txt", "further": "file:///home/jane/more.txt"}
    model = CustomModel.model_validate({"name": "/home/jane/net.py:Net", **files, "depth": 2})
    mine = with_timings(
        with_record(with_settings(gpu_elsewhere, model=model), custom_code=code), host=host
    )
    written = recorded(mine)
    assert "jane" not in write_reference(tmp_path, written).read_text(encoding="utf-8")
    assert written.timings.host.software.variables == {
        "LD_PRELOAD": "(set)", "CUDA_VISIBLE_DEVICES": "(set)", "OMP_NUM_THREADS": "4",
    }  # fmt: skip
    assert written.training.custom_code == {"net.py": "a", "b": "b", "package torch": "2"}
    assert written.training.experiment.model.model_dump(exclude_defaults=True) == {
        "name": "net.py:Net", "vocabulary": "words.txt", "further": "more.txt", "depth": 2,
    }  # fmt: skip
    (read,) = read_references(tmp_path, "all")
    assert steps_key(read.training) == steps_key(mine.record)
    other = mine.record.model_copy(update={"custom_code": code | {"../jane/lib/layers.py": "c"}})
    assert steps_key(written.training) != steps_key(other)


def test_only_the_chosen_machines_are_read_and_records_of_other_versions_left_out_by_name(
    gpu_elsewhere: TrainedRecords, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for machine in ("one", "two"):
        path = write_reference(tmp_path, recorded(gpu_elsewhere, machine))
    (tmp_path / "README.md").touch()
    assert [each.machine for each in read_references(tmp_path, "all")] == ["one", "two"]
    assert [each.machine for each in read_references(tmp_path, ["two"])] == ["two"]
    assert read_references(tmp_path, "none") == read_references(tmp_path / "nowhere", "all") == []
    with pytest.raises(UserError, match=r"compare\.references names three; .*\(one, two\)"):
        read_references(tmp_path, ["two", "three"])
    this = path.read_text(encoding="utf-8")
    for other in (this.replace('"timings": {', '"timings": {"energy": null,'), this[:-9]):
        path.write_text(other, encoding="utf-8")
        assert [each.machine for each in read_references(tmp_path, "all")] == ["one"]
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"{path} ")


def test_each_machines_record_is_shown_with_its_day_and_its_score_if_it_learned_the_same(
    here: list[DeviceResult], gpu_elsewhere: TrainedRecords
) -> None:
    other_seed = with_settings(gpu_elsewhere, seed=1)
    records = [recorded(gpu_elsewhere), recorded(gpu_elsewhere, "two"), recorded(other_seed)]
    rows = references_table(record_of(paired(here, None, records)[0]))
    assert rows[0]["recorded elsewhere"] == "2023-11-14 (nvidia-made-up-100)"
    assert {row["speed-up"] for row in rows} == {"6.0x"}
    assert ["75.00% test accuracy" in row["test"] for row in rows] == [True, True, False]


@pytest.mark.parametrize(("seeds_here", "seeds_there"), [(5, 1), (1, 5)])
def test_a_recorded_gpu_counts_as_many_seeds_as_the_job(seeds_here: int, seeds_there: int) -> None:
    gpu = lasting(5.5, "gpu", further_seeds=seeds_there - 1)
    cpu = lasting(30.0, further_seeds=seeds_here - 1)
    worth = decide_rented([compared(cpu, references=[gpu])])
    expected = gpu.whole_seconds + (seeds_here - 1) * gpu.passes_seconds
    assert worth.gpu.time.seconds == pytest.approx(expected)


@pytest.mark.parametrize(("machines", "seconds"), [(1, 12.0), (2, 9.5), (3, 7.0), (4, 8.0)])
def test_a_gpu_that_several_machines_recorded_has_the_median_time_and_a_hosts_error(
    machines: int, seconds: float
) -> None:
    gpus = [lasting(each, "gpu") for each in (12.0, 7.0, 4.5, 9.0)[:machines]]
    (gpu,) = compared(lasting(30.0), references=gpus).candidates
    assert (gpu.basis, gpu.time.seconds) == ("recorded", pytest.approx(seconds))
    # Hosts whose speeds differ by 15 % take up to 1.42 times as long, in nine of ten pairs.
    low_seconds, high_seconds = gpu.time.interval
    assert low_seconds < seconds / 1.42
    assert high_seconds > seconds * 1.42


MATCHES: list[tuple[dict[str, Any], bool, bool]] = [
    ({"dataset": "called-otherwise"}, True, True),
    ({"repeats": 5}, True, True),
    ({"epochs": 4}, True, True),
    ({"seed": 1}, True, False),
    (
        {"optimizer": Optimizer.model_validate({"name": "sgd", "lr": 0.02, "momentum": 0.9})},
        True,
        False,
    ),
    ({"schedule": Schedule.model_validate({"name": "cosine"})}, True, False),
    ({"early_stopping": EarlyStopping(patience=3)}, True, False),
    ({"optimizer": Optimizer.model_validate({"name": "sgd", "lr": 0.1})}, False, False),
    ({"batch_size": 17}, False, False),
    ({"cuda_graphs": "off"}, False, False),  # which the GPU of the record reads
    ({"precision": "bf16"}, False, False),
]
"""Changes of settings, and whether a record still matches for its times and for its losses."""


def test_references_match_for_times_by_the_step_and_for_losses_by_the_training(
    here: list[DeviceResult], gpu_elsewhere: TrainedRecords
) -> None:
    for settings, same_times, same_losses in MATCHES:
        other = recorded(with_settings(gpu_elsewhere, **settings))
        (pair,) = paired(here, None, [other])
        found = bool(pair.references), any(map(pair.has_same_losses, pair.references))
        assert found == (same_times, same_losses), settings
    cpu = here[0]
    other = job_settings(with_settings(cpu, cuda_graphs="off").record)
    assert job_settings(cpu.record).steps_key_on_cpu == other.steps_key_on_cpu


def test_losses_of_other_epochs_match_unless_the_schedule_depends_on_their_number(
    gpu_elsewhere: TrainedRecords,
) -> None:
    schedules: list[tuple[dict[str, Any], bool]] = [
        ({"name": "constant"}, True),
        ({"name": "step", "step_size": 2}, True),
        ({"name": "reduce_on_plateau"}, True),
        ({"name": "cosine", "T_max": 10}, True),
        ({"name": "cosine"}, False),
        ({"name": "one_cycle", "max_lr": 0.1}, False),
        ({"name": "./mine.py:schedule"}, False),
    ]
    for settings, matches in schedules:
        one = with_settings(gpu_elsewhere, schedule=Schedule.model_validate(settings))
        other = with_settings(one, epochs=one.record.experiment.epochs + 1)
        keys = [job_settings(each.record).losses_key for each in (one, other)]
        assert (keys[0] == keys[1]) is matches, settings


def test_a_reference_has_the_times_of_a_job_of_as_many_epochs_as_here(
    here: list[DeviceResult], make_result: MakeResult, gpu_elsewhere: TrainedRecords
) -> None:
    once_seconds = gpu_elsewhere.times.once_seconds
    for epochs in (2, 5, 50):
        cpu = trained(make_result, epoch_seconds=(3.0,) * epochs, total_seconds=200.0)
        (found,) = elsewhere([cpu, here[1]], recorded(gpu_elsewhere))
        assert found.epochs == epochs
        assert found.whole_seconds == pytest.approx(once_seconds + epochs * 0.6)


def test_the_shipped_records_match_experiments_of_params_yaml_and_the_examples() -> None:
    files = "params", "examples/mnist-linear", "examples/fashion-lenet-grid"
    experiments = {
        name: each
        for file in files
        for name, each in read_params(ROOT / f"{file}.yaml").experiments.items()
    }
    shipped = read_references(ROOT / "reference", "all")
    assert {each.training.device for each in shipped} == {"cpu", "gpu"}
    for each in shipped:
        experiment = experiments[each.experiment]
        experiment = experiment.model_copy(update={"dataset": each.training.experiment.dataset})
        mine = each.training.model_copy(update={"experiment": experiment})
        assert steps_key(each.training) == steps_key(mine)
        job, recorded = job_of_reference(each, experiment.epochs), each.timings
        an_epoch = (recorded.whole_seconds - recorded.once_seconds) / recorded.planned_epochs
        whole_seconds = recorded.once_seconds + experiment.epochs * an_epoch
        assert job.whole_seconds == pytest.approx(whole_seconds)


def test_a_reference_with_other_data_or_code_is_not_shown(gpu_elsewhere: TrainedRecords) -> None:
    record = gpu_elsewhere.record
    code = [
        {"net.py": "a1", "package torch": "1"},
        {"net.py": "a1", "package torch": "2"},
        {"net.py": "b1"},
    ]
    runs = [record.model_copy(update={"custom_code": files}) for files in code]
    assert [steps_key(runs[0]) == steps_key(run) for run in runs] == [True, True, False]
    for field in ("data_sha256", "published_weights_sha256"):
        assert steps_key(record) != steps_key(record.model_copy(update={field: "e" * 64}))


def test_a_reference_of_hardware_that_is_here_is_not_shown(
    here: list[DeviceResult], make_result: MakeResult, gpu_elsewhere: TrainedRecords
) -> None:
    assert elsewhere(here, recorded(trained(make_result, epoch_seconds=FIVE))) == []
    assert elsewhere([here[0], gpu_elsewhere], recorded(gpu_elsewhere)) == []


def test_all_results_are_recorded_but_resumed_ones_and_those_of_other_machines(
    make_result: MakeResult,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("platform.node", lambda: "workbench")
    monkeypatch.chdir(tmp_path)
    busy = BUSY.model_copy(update={"major_page_faults": 10_000})
    results = [
        with_timings(trained(make_result, "a"), resumed_at_epochs=(2,)),
        make_result("b", "cpu", unavailable="no"),
        with_timings(trained(make_result, "c"), load=(busy,)),
        with_timings(trained(make_result, "d"), host_name="elsewhere"),
        *(make_result(name, "gpu", unavailable="no driver") for name in "abcd"),
    ]
    plan = tmp_path / "data/plan/experiments"
    plan.mkdir(parents=True)
    for result in results:
        (plan / f"{result.experiment}.json").touch()
        write_result(tmp_path / "results", result)
        if isinstance(result, TrainedRecords):
            write_scores(tmp_path / "results", result)
    for name in "ad":  # of which no more is read
        (tmp_path / "results" / name / "cpu/model/history.csv").unlink()
    monkeypatch.setattr(pipeline, "enter", lambda: None)
    pipeline.record_results(Namespace(machine="mine"))
    (reference,) = read_references(tmp_path / "reference", ["mine"])
    assert reference.experiment == "c"
    assert reference.photofinish_version == metadata.version("photofinish")
    a, c, d, _ = capsys.readouterr().out.splitlines()
    assert a.startswith("a on cpu: not recorded")
    assert c.startswith("c on cpu: reference/mine/c.cpu.json; ")
    assert "memory" in c
    assert d.startswith("d on cpu: not recorded")


def test_nothing_to_record_is_said_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pipeline, "enter", lambda: None)
    with pytest.raises(UserError, match="run `dvc repro` first"):
        pipeline.record_results(Namespace(machine="mine"))
    Path("data/plan/scripts").mkdir(parents=True)
    with pytest.raises(UserError, match="no experiments, and scripts are not recorded"):
        pipeline.record_results(Namespace(machine="mine"))


def test_a_model_is_compared_with_a_record_by_what_it_has() -> None:
    epochs = make_model(history=history_of(1.0, 0.5, 0.3, 0.2, 0.1))
    cpu = lasting(30.0, trained=epochs, first_step=FIRST_STEP)

    def text(first_step: FirstStep | None, *losses: float) -> str:
        own = [epoch.training_loss for epoch in epochs.history]
        model = make_model("gpu", history=history_of(*losses, *own[len(losses) :]))
        gpu = lasting(30.0, "gpu", trained=model, first_step=first_step)
        return model_text(record_of(compared(cpu, references=[gpu])))

    def other(**changed: Any) -> FirstStep:
        return FIRST_STEP.model_copy(update=changed)

    gradients = {**FIRST_STEP.gradients, "3.weight": (0.25, -0.2)}
    assert text(None) == "yes so far* (5 epochs of losses, Some GPU)"
    assert text(None, 1.0, 9.0) == "yes so far* (1 epoch of losses, Some GPU)"
    assert text(None, 9.0) == "unclear, losses differ in epoch 1 (Some GPU*)"
    assert text(FIRST_STEP) == "yes so far* (first step and 5 epochs of losses, Some GPU)"
    assert text(other(gradients=gradients)) == "no*, starting with the first gradient (Some GPU)"
    order = other(batch_order_sha256="3" * 64)
    assert text(order) == "no*, starting with the batch order (Some GPU)"
