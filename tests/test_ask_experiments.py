"""`photofinish ask NAME`: samples of an experiment's training, and whole jobs by them."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from conftest import CustomFiles, MakeResult, MakeRun
from outputs import record_of
from result_files import trained
from training_process import measure_here

from photofinish.answer.comparison import compare
from photofinish.answer.decision import decide
from photofinish.answer.times import job_time
from photofinish.commands import ask as ask_command
from photofinish.commands import ask_experiments
from photofinish.commands.ask_options import Terms, gpus
from photofinish.commands.cli import main
from photofinish.config.compare import SHORT_LIST, ComparePlan, Comparing
from photofinish.errors import ConfigError
from photofinish.reporting.answer_words import model_text
from photofinish.reporting.ask_lines import AskFiles
from photofinish.results.job import JobPair
from photofinish.results.measured_jobs import job_of_experiment
from photofinish.results.references import reference_of
from photofinish.results.trained import FirstStep
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
    assert worth.cpu_time.seconds in (job.whole_seconds, job.job_seconds)


def test_samples_on_both_devices_or_a_sample_and_a_record_are_compared_by_the_first_step(
    make_run: MakeRun, make_result: MakeResult
) -> None:
    measured = measure_here(make_run(epochs=2), 1e-6)
    assert measured.first_step
    assert measured.training
    step, record = measured.first_step, measured.training
    cpu = job_of_experiment(measured, record.experiment)
    outputs = {part: (norm * (1 + 1e-9), *sums) for part, (norm, *sums) in step.outputs.items()}

    def model(first_step: FirstStep | None) -> str:
        gpu = replace(cpu, device="gpu", first_step=first_step)
        return model_text(record_of(compare(JobPair(cpu, gpu))))

    rounded, another = ({"outputs": outputs}, {"first_batch_sha256": "e"})
    assert model(step) == "yes, bit for bit (first step)"
    assert model(step.model_copy(update=rounded)) == "yes, within rounding (first step)"
    assert model(step.model_copy(update=another)) == "no, the first step differs (first batch)"
    assert model(None) == "not checked, as no first step was recorded on both devices"
    there = trained(make_result, device="gpu", device_name="NVIDIA Made-Up 100")
    record = record.model_copy(update={"device": "gpu"})
    there = replace(there, record=record, first_step=step)
    text = model_text(record_of(compare(*with_references([JobPair(cpu)], [reference_of(there)]))))
    assert text == "yes so far* (first step, Made-Up 100)"


def test_names_of_params_yaml_are_told_from_commands_and_options_may_follow_them(
    custom_files: CustomFiles, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = Mock()
    monkeypatch.setattr(ask_experiments, "ask_experiments", asked)
    monkeypatch.setattr(ask_command, "ask", asked)

    def call_of(words: str) -> tuple[Any, ...]:
        monkeypatch.setattr(sys, "argv", ["photofinish", "ask", *words.split()])
        monkeypatch.chdir(custom_files.folder)
        main()
        return asked.call_args.args

    def refused(words: str) -> str:
        with pytest.raises(SystemExit):
            call_of(words)
        return capsys.readouterr().err

    assert call_of("python train.py")[0] == ["python", "train.py"]
    assert "name a command" in refused("")
    custom_files.write("params.yaml", "[another, program's]")
    custom_files.write("photofinish/stages/plan.py", "")
    custom_files.write("photofinish/params.yaml", "experiments: {small: }\nscripts: {timed: }")
    for words in ("", "small", "timed small"):
        assert call_of(words)[0] == words.split()
    for words in ("smal", "smal timed"):
        assert "did you mean 'small'" in refused(words)
    for words in ("small --seconds 3 timed --json a.json", "--seconds 3 small timed --json a.json"):
        files = AskFiles(custom_files.folder / "a.json")
        assert call_of(words) == (["small", "timed"], Limits(3.0, 600.0), files, Terms())
    command = "python train.py --seconds 3"
    for words in (command, f"-- {command}", f"--price 0 -- {command}"):
        assert call_of(words)[0] == command.split()
    for words in ("-- small", "--show-output -- small"):
        name, length_of_a_command, limits, *_ = call_of(words)
        assert (name, length_of_a_command) == (["small"], None)
        assert limits.shows_output is words.startswith("--show")


def test_options_replace_the_settings_of_renting_for_a_script_and_for_an_experiment() -> None:
    prices = {"currency": "EUR", "accelerator_hour": {"L4": 2.0, "H100": 3.0}}
    plan = ComparePlan.model_validate({"experiments": ("a",), "prices": prices, "worth_saving": 1})
    for settings in (Comparing(), plan):
        assert Terms().applied_to(settings) == settings
    changed = Terms(gpus("T4, L4"), 0.0, 0.0).applied_to(plan)
    assert (changed.experiments, changed.worth_saving) == (("a",), 0.0)  # a GPU of one's own
    assert Terms(("T4",), 2.0, 0.0).applied_to(plan).worth_saving == 1.0
    assert (changed.accelerators, changed.rental_minutes) == (("T4", "L4"), 0.0)
    assert changed.prices.accelerator_hour == {"T4": 0.0, "L4": 0.0, "H100": 3.0}
    free = Terms(hour_price=0.0).applied_to(Comparing())
    assert dict.fromkeys(SHORT_LIST, 0.0) == free.prices.accelerator_hour
    assert len(Terms(gpus("all")).applied_to(Comparing()).accelerators) > len(SHORT_LIST)
    with pytest.raises(ConfigError, match="did you mean 'T4'"):
        gpus("L4,T5")
