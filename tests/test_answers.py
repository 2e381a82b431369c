"""report/answers.json: an answer that programs can act on."""

from __future__ import annotations

import json
import os
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT, MakeExperiment, MakeResult
from outputs import write_report
from result_files import pair_of, trained, with_record, with_timings

from photofinish.answer.comparison import Comparison
from photofinish.answer.diagnosis import Diagnosis
from photofinish.answer.remedies import Gain, Remedy
from photofinish.files import to_json
from photofinish.reporting.answers import Answers

SCHEMA = ROOT / "docs" / "answers.schema.json"
LOADER = {"name": "loader", "workers": 0}
RESIDENT = Remedy("resident", {"experiments.mlp.input": "resident"}, Gain(1.5, 2.5))
BATCH = Remedy("batch size", {"experiments.mlp.batch_size": 64}, Gain(1.2, 3.0))
THREADS = Remedy("threads", {"devices.cpu.threads": 4}, Gain(1.2, 3.0))


def test_the_schema_is_that_of_the_answers() -> None:
    """PHOTOFINISH_UPDATE_GOLDEN=1 rewrites it."""
    schema = to_json(Answers.model_json_schema())
    if os.environ.get("PHOTOFINISH_UPDATE_GOLDEN"):
        SCHEMA.write_text(schema, encoding="utf-8")
    assert SCHEMA.read_text(encoding="utf-8") == schema


@pytest.fixture
def make_pair(make_result: MakeResult, make_experiment: MakeExperiment) -> Any:
    """Make the result of settings on the CPU, with suggestions."""

    def make(seconds: float, *remedies: Remedy, threads: int = 8, **settings: Any) -> Comparison:
        run = trained(make_result, "mlp", epoch_seconds=(seconds,) * 5)
        run = with_record(run, experiment=make_experiment(**settings))
        host = run.times.host.model_copy(update={"threads": threads})
        run = with_timings(run, host=host)
        found = tuple(Diagnosis("an epoch", "input-bound", (each,)) for each in remedies)
        return replace(pair_of(run), diagnoses={"cpu": found})

    return make


def answer_of(pair: Comparison, folder: Path) -> dict[str, Any]:
    write_report([pair], folder)
    text = (folder / "answers.json").read_text(encoding="utf-8")
    Answers.model_validate_json(text)
    answer: dict[str, Any] = json.loads(text)["answers"]["mlp"]
    return answer


def test_a_suggestion_has_its_gain_and_the_command_that_tries_it(
    make_pair: Any, tmp_path: Path
) -> None:
    answer = answer_of(make_pair(2.0, RESIDENT, THREADS, input=LOADER), tmp_path)
    resident, threads = answer["suggestions"]
    assert resident.pop("command") == "dvc exp run --temp -S '++experiments.mlp.input=resident'"
    assert resident == {
        "device": "cpu",
        "settings": {"experiments.mlp.input": "resident"},
        "line": "experiments.mlp.input: resident",
        "gain": {"low": pytest.approx(1.13, abs=0.1), "high": pytest.approx(1.27, abs=0.1)},
        "learns": "the same",
    }
    assert threads["learns"] == "other last bits"
    assert 1 < threads["gain"]["low"] < 1.2  # of the job, of which only epochs get faster
    assert answer["cpu_seconds"]["low"] < answer["cpu_seconds"]["value"]
    assert answer["cpu_seconds"]["value"] < answer["cpu_seconds"]["high"]
    assert [each["cause"] for each in answer["causes"]] == ["input-bound"] * 2
    assert (answer["gpu_seconds"], answer["evidence"]) == (None, "bound")


def test_the_example_applies_suggestions_until_none_is_left_that_keeps_what_is_learned(
    make_pair: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    params = Path("params.yaml")
    params.write_text("experiments: {mlp: {input: {name: loader, workers: 0}}}\n")

    def run(command: list[str], *, check: bool) -> None:
        assert (command, check) == (["photofinish", "run"], True)
        found = yaml.safe_load(params.read_text())
        settings, threads = found["experiments"]["mlp"], found.get("devices", {})
        seconds, left, used = 2.0, [BATCH], {"input": LOADER}
        if settings["input"] == "resident":
            seconds, used = 1.0, {}
        else:
            left.insert(0, RESIDENT)
        if threads:
            seconds, used = seconds / 2, used | threads["cpu"]
        else:
            left.append(THREADS)
        pair = make_pair(seconds, *left, **used)
        answer_of(pair, Path("report"))

    monkeypatch.setattr("subprocess.run", run)
    monkeypatch.setattr("sys.argv", ["apply_suggestions.py", "mlp"])
    runpy.run_path(str(ROOT / "examples" / "apply_suggestions.py"))
    assert yaml.safe_load(params.read_text()) == {
        "experiments": {"mlp": {"input": "resident"}},
        "devices": {"cpu": {"threads": 4}},
    }
