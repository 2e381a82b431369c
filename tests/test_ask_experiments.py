"""`photofinish ask NAME`: samples of an experiment's training, and whole jobs by them."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from conftest import MakeResult, MakeRun
from outputs import record_of
from result_files import trained
from training_process import measure_here

from photofinish.answer.comparison import compare
from photofinish.answer.decision import decide
from photofinish.answer.times import job_time
from photofinish.commands import ask as ask_command
from photofinish.commands import ask_experiments
from photofinish.commands.ask_options import Terms, are_experiments
from photofinish.commands.cli import main
from photofinish.config.compare import SHORT_LIST, ComparePlan, Comparing
from photofinish.errors import ConfigError
from photofinish.reporting.ask_lines import AskFiles
from photofinish.reporting.model_words import model_text
from photofinish.results.job import JobPair
from photofinish.results.measured_jobs import job_of_experiment
from photofinish.results.references import reference_of
from photofinish.results.training_jobs import with_references
from photofinish.scripts.run_script import Limits


@pytest.mark.parametrize(
    ("seconds", "batch_size", "expected"),
    [
        (1e-6, 16, {"start", "steps"}),
        (600.0, 16, {"epoch"}),
        (1e-6, 2048, {"start"}),  # an epoch is one slow step
    ],
)
def test_a_measurement_answers_for_all_epochs_and_seeds(
    make_run: MakeRun, tmp_path: Path, seconds: float, batch_size: int, expected: set[str]
) -> None:
    schedule = {"name": "one_cycle", "max_lr": 0.1}
    run = make_run(epochs=12, seeds=2, schedule=schedule, batch_size=batch_size)
    measured = measure_here(run, seconds)
    assert [path.name for path in tmp_path.rglob("*.*")] == ["measured.json"]
    assert measured.training
    job = job_of_experiment(measured, run.experiment)
    assert job.epochs == 12
    assert job.timed.of == 12 * -(-measured.training.samples["train"] // batch_size)
    assert {part.holds for part in measured.parts} == expected
    assert job.median_step_seconds < 1.01 * job.median_epoch_seconds
    assert measured.operations
    assert measured.first_step
    low, high = job_time(job).interval
    assert low < job.whole_seconds < high
    assert job.seeds_seconds == pytest.approx(job.whole_seconds - job.once_seconds)
    pair = compare(JobPair(job), Comparing(accelerators=("T4",)))
    worth = decide(pair).worth
    assert worth.here.seconds in (job.whole_seconds, job.job_seconds)


def test_samples_on_both_devices_or_a_sample_and_a_record_are_compared_by_the_first_step(
    make_run: MakeRun, make_result: MakeResult
) -> None:
    measured = measure_here(make_run(epochs=2), 1e-6)
    assert measured.first_step
    assert measured.training
    step, record = measured.first_step, measured.training
    cpu = job_of_experiment(measured, record.experiment)
    outputs = {part: (norm * (1 + 1e-9), *sums) for part, (norm, *sums) in step.outputs.items()}
    found = []
    for changes in ({}, {"outputs": outputs}, {"first_batch_sha256": "e"}):
        gpu = replace(cpu, device="gpu", first_step=step.model_copy(update=changes))
        found.append(model_text(record_of(compare(JobPair(cpu, gpu)))))
    assert found == [
        "yes, bit for bit (first step)",
        "yes, within rounding (first step)",
        "no, the first step differs (first batch)",
    ]
    missing = model_text(
        record_of(compare(JobPair(cpu, replace(cpu, device="gpu", first_step=None))))
    )
    assert missing == "not checked, as no first step was recorded on both devices"
    there = trained(make_result, device="gpu", device_name="NVIDIA Made-Up 100")
    record = record.model_copy(update={"device": "gpu"})
    there = replace(there, record=record, first_step=step)
    text = model_text(record_of(compare(*with_references([JobPair(cpu)], [reference_of(there)]))))
    assert text == "yes so far* (first step, Made-Up 100)"


def test_names_of_params_yaml_are_told_from_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert not are_experiments(["python", "train.py"])
    with pytest.raises(ConfigError, match="name a command"):
        are_experiments([])
    (tmp_path / "params.yaml").write_text("[another, program's]\n")
    (tmp_path / "photofinish/stages").mkdir(parents=True)
    (tmp_path / "photofinish/stages/plan.py").touch()
    params = tmp_path / "photofinish/params.yaml"
    params.write_text("experiments: {small: }\nscripts: {timed: }\n")
    for names in ([], ["small"], ["timed", "small"]):
        assert are_experiments(names)
    assert not are_experiments(["python", "small"])
    for names in (["smal"], ["smal", "timed"]):
        with pytest.raises(ConfigError, match="did you mean 'small'"):
            are_experiments(names)


def test_options_may_follow_the_names_of_experiments_but_not_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stages").mkdir()
    (tmp_path / "stages/plan.py").touch()
    (tmp_path / "params.yaml").write_text("experiments: {small: , other: }\n")
    monkeypatch.chdir(tmp_path)
    asked = Mock()
    monkeypatch.setattr(ask_experiments, "ask_experiments", asked)
    monkeypatch.setattr(ask_command, "ask", asked)
    for words in ("small --seconds 3 other --json a.json", "--seconds 3 small other --json a.json"):
        monkeypatch.setattr(sys, "argv", ["photofinish", "ask", *words.split()])
        main()
        limits = Limits(3.0, 600.0)
        files = AskFiles(tmp_path / "a.json")
        asked.assert_called_with(["small", "other"], limits, files, None)
    monkeypatch.setattr(sys, "argv", ["photofinish", "ask"])
    main()
    assert asked.call_args.args[0] == []
    command = ["python", "train.py", "--seconds", "3"]
    for words in (command, ["--", *command], ["--price", "0", "--", *command]):
        monkeypatch.setattr(sys, "argv", ["photofinish", "ask", *words])
        main()
        assert asked.call_args.args[0] == command
    for words in (["--", "small"], ["--show-output", "--", "small"]):
        monkeypatch.setattr(sys, "argv", ["photofinish", "ask", *words])
        main()
        assert asked.call_args.args[0] == ["small"]
        assert asked.call_args.args[1] is None  # the length of a command's job
        assert asked.call_args.args[2].shows_output is (len(words) == 3)


def test_options_replace_the_settings_of_renting_for_a_script_and_for_an_experiment() -> None:
    prices = {"currency": "EUR", "accelerator_hour": {"L4": 2.0, "H100": 3.0}}
    plan = ComparePlan.model_validate({"experiments": ("a",), "prices": prices, "worth_saving": 1})
    for settings in (Comparing(), plan):
        assert Terms().applied_to(settings) == settings
    changed = Terms("T4, L4", 0.0, 0.0).applied_to(plan)
    assert (changed.experiments, changed.worth_saving) == (("a",), 0.0)  # a GPU of one's own
    assert Terms("T4", 2.0, 0.0).applied_to(plan).worth_saving == 1.0
    assert (changed.accelerators, changed.rental_minutes) == (("T4", "L4"), 0.0)
    assert changed.prices.accelerator_hour == {"T4": 0.0, "L4": 0.0, "H100": 3.0}
    free = Terms(hour_price=0.0).applied_to(Comparing())
    assert dict.fromkeys(SHORT_LIST, 0.0) == free.prices.accelerator_hour
    assert len(Terms("all").applied_to(Comparing()).accelerators) > len(SHORT_LIST)
    with pytest.raises(ConfigError, match="did you mean 'T4'"):
        Terms("L4,T5")
