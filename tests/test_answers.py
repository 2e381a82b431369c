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
from result_files import pair_of, trained, with_record

from photofinish.comparing.diagnosis import Diagnosis
from photofinish.comparing.pairs import TrainedPair
from photofinish.comparing.remedies import Gain, Remedy
from photofinish.comparing.tried import follow_up
from photofinish.files import to_json
from photofinish.reporting.answers import Answers
from photofinish.reporting.report import write_report

SCHEMA = ROOT / "docs" / "answers.schema.json"
LOADER = {"name": "loader", "workers": 0}
RESIDENT = Remedy("experiments.mlp.input", "resident", Gain(1.5, 2.5), "resident")
DECODE = Remedy("datasets.small.decode", "once", Gain(1.2, 3.0), "decode once")
SHRINK = Remedy(
    DECODE.key, "once", Gain(1.3, 3.5), "stored size", (("datasets.small.size", [36, 36]),)
)
BATCH = Remedy("experiments.mlp.batch_size", 64, Gain(1.2, 3.0), "batch size")
THREADS = Remedy("devices.cpu.threads", 4, Gain(1.2, 3.0), "tried threads")
DATA = {"data_sha256", "decode", "stored_shape"}
"""Fields of a record on its data."""


def test_the_schema_is_that_of_the_answers() -> None:
    """PHOTOFINISH_UPDATE_GOLDEN=1 rewrites it."""
    schema = to_json(Answers.model_json_schema())
    if os.environ.get("PHOTOFINISH_UPDATE_GOLDEN"):
        SCHEMA.write_text(schema, encoding="utf-8")
    assert SCHEMA.read_text(encoding="utf-8") == schema


@pytest.fixture
def make_pair(make_result: MakeResult, make_experiment: MakeExperiment) -> Any:
    """Make the result of settings on the CPU, with suggestions."""

    def make(seconds: float, *remedies: Remedy, threads: int = 8, **settings: Any) -> TrainedPair:
        run = trained(make_result, "mlp", epoch_seconds=(seconds,) * 5)
        data = {key: settings.pop(key) for key in DATA & settings.keys()}
        run = with_record(run, experiment=make_experiment(**settings), **data)
        host = run.timings.host.model_copy(update={"threads": threads})
        run = replace(run, timings=run.timings.model_copy(update={"host": host}))
        found = tuple(Diagnosis("an epoch", "input-bound", run, each) for each in remedies)
        return replace(pair_of(run), diagnoses={"cpu": found})

    return make


def answer_of(pair: TrainedPair, folder: Path) -> dict[str, Any]:
    tried = follow_up([pair], folder / "suggestions")
    write_report([pair], folder, tried=tried)
    text = (folder / "answers.json").read_text(encoding="utf-8")
    Answers.model_validate_json(text)
    answer: dict[str, Any] = json.loads(text)["answers"]["mlp"]
    return answer


def test_a_suggestion_has_its_gain_its_evidence_and_the_command_that_tries_it(
    make_pair: Any, tmp_path: Path
) -> None:
    answer = answer_of(make_pair(2.0, RESIDENT, THREADS, input=LOADER), tmp_path)
    resident, threads = answer["suggestions"]
    assert resident.pop("command") == "dvc exp run --temp -S '++experiments.mlp.input=resident'"
    assert resident == {
        "device": "cpu",
        "settings": {"experiments.mlp.input": "resident"},
        "line": "experiments.mlp.input: resident",
        "gain": {"low": 1.5, "high": 2.5},
        "evidence": "tried",
        "learns": "the same",
    }
    assert [threads[key] for key in ("gain", "evidence", "learns")] == [
        {"low": 1.2, "high": 3.0},
        "tried",
        "other last bits",
    ]
    assert answer["cpu_seconds"]["low"] < answer["cpu_seconds"]["value"]
    assert answer["cpu_seconds"]["value"] < answer["cpu_seconds"]["high"]
    assert [each["cause"] for each in answer["causes"]] == ["input-bound"] * 2
    assert (answer["gpu_seconds"], answer["evidence"], answer["tried"]) == (None, "bound", [])


BYTES = Remedy(RESIDENT.key, LOADER | {"byte_batches": True}, Gain(1.5, 2.5), "byte batches")


@pytest.mark.parametrize(("device", "learns"), [("cpu", "the same"), ("gpu", "other last bits")])
def test_bytes_may_change_the_last_bits_on_a_gpu_only(
    make_pair: Any, tmp_path: Path, device: str, learns: str
) -> None:
    pair = make_pair(2.0, BYTES, input=LOADER)
    pair = replace(pair, diagnoses={"cpu": (), device: pair.diagnoses["cpu"]})
    (suggestion,) = answer_of(pair, tmp_path)["suggestions"]
    assert suggestion["learns"] == learns


LIVE = {"input": LOADER, "decode": "each_epoch", "stored_shape": (3, 256, 256)}
GATHERED = LIVE | {"input": {"name": "resident"}}
ONCE = LIVE | {"decode": "once", "data_sha256": "e" * 64}
LOW, WIDE = {"low": 1.5, "high": 2.5}, {"low": 1.2, "high": 3.0}


@pytest.mark.parametrize(
    ("followed", "key", "promised"),
    [
        (GATHERED, "experiments.mlp.input", LOW),
        (GATHERED | {"epochs": 3}, "experiments.mlp.input", LOW),
        (LIVE | {"threads": 4}, "devices.cpu.threads", WIDE),
        (ONCE, "datasets.small.decode", WIDE),
        (ONCE | {"stored_shape": (3, 36, 36)}, "datasets.small.size", {"low": 1.3, "high": 3.5}),
        (GATHERED | {"threads": 4}, None, None),  # both at once
        (GATHERED | {"data_sha256": "e" * 64}, None, None),
        (GATHERED | {"batch_size": 32}, None, None),  # and something else
        (LIVE | {"data_sha256": "e" * 64}, None, None),  # such as another seed of the split
        (LIVE, None, None),
    ],
)
def test_a_followed_suggestion_shows_what_it_promised_and_what_was_measured(
    make_pair: Any,
    tmp_path: Path,
    followed: dict[str, Any],
    key: str | None,
    promised: dict[str, float] | None,
) -> None:
    slow = make_pair(2.0, RESIDENT, THREADS, DECODE, SHRINK, **LIVE)
    assert not answer_of(slow, tmp_path)["tried"]
    for _ in range(2):  # a report that is written again has it, too
        tried = answer_of(make_pair(1.0, **followed), tmp_path)["tried"]
        assert [[*each["settings"]][-1] for each in tried] == ([key] if key else [])
        if key:
            assert tried[0]["promised"] == promised
            assert tried[0]["measured"]["value"] == pytest.approx(2.0)
            assert "measured 2.0x" in (tmp_path / "index.html").read_text(encoding="utf-8")


def test_the_last_suggestions_are_kept_and_those_of_another_version_are_ignored(
    make_pair: Any, tmp_path: Path
) -> None:
    (tmp_path / "mlp.json").write_text('{"promises": [{"device": "cpu"}]}')
    slow, *others = (
        make_pair(2.0, RESIDENT, input=LOADER, batch_size=size) for size in range(16, 67)
    )
    for pair in (slow, *others[:-1], slow, others[-1]):
        follow_up([pair], tmp_path)
    assert follow_up([make_pair(1.0)], tmp_path)["mlp"]


def test_the_example_applies_suggestions_until_none_is_left_that_keeps_what_is_learned(
    make_pair: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    params = Path("params.yaml")
    params.write_text("experiments: {mlp: {input: {name: loader, workers: 0}}}\n")
    tried = []

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
        tried.extend(answer_of(pair, Path("report"))["tried"])

    monkeypatch.setattr("subprocess.run", run)
    monkeypatch.setattr("sys.argv", ["apply_suggestions.py", "mlp"])
    runpy.run_path(str(ROOT / "examples" / "apply_suggestions.py"))
    assert yaml.safe_load(params.read_text()) == {
        "experiments": {"mlp": {"input": "resident"}},
        "devices": {"cpu": {"threads": 4}},
    }
    assert [each["measured"]["value"] for each in tried] == pytest.approx([2.0, 2.0])
