"""Ratios and tables of the benchmarks, a quick run of every side, and the probe of a GPU."""

from __future__ import annotations

import csv
import hashlib
import json
import math
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import warm_python
from conftest import ROOT, run_command

sys.path.insert(0, str(ROOT))  # the benchmarks are beside the package, not in it

from benchmarks import ask, coverage, gpu_probe, tutorials
from benchmarks.probe import findings
from benchmarks.table import BARE, OURS, TUTORIAL, markdown, rows_of, write
from benchmarks.timing import Outcome, Spread, alternate, ratios
from photofinish.answer import times


def outcomes(*seconds: float) -> list[Outcome]:
    return [Outcome(each, 0.5) for each in seconds]


def read_rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "benchmarks.csv").open(encoding="utf-8", newline="") as text:
        return list(csv.DictReader(text))


def test_sides_take_turns_and_none_always_follows_the_same_one() -> None:
    ran: list[str] = []

    def side(name: str) -> Any:
        return lambda: ran.append(name) or Outcome(1.0, 0.5)

    measured = alternate({name: side(name) for name in "abc"}, rounds=4)
    assert "".join(ran) == "abc" + "bca" + "cab" + "abc"
    assert {name: len(each) for name, each in measured.items()} == {"a": 4, "b": 4, "c": 4}


def test_ratios_of_rounds_are_ours_over_the_bare_loop_and_others_over_ours(tmp_path: Path) -> None:
    assert ratios(outcomes(2, 20, 4), outcomes(1, 10, 1)) == Spread(2, 2, 4)
    workload: Any = SimpleNamespace(name="s", title="Small", data=SimpleNamespace(is_real=False))
    measured = {OURS: outcomes(1, 2, 3), TUTORIAL: outcomes(12, 24, 36), BARE: outcomes(2, 2, 2)}
    rows, machine = rows_of(workload, measured), {"processor": "some", "threads": "2"}
    assert {row.side: row.ratio for row in rows} == {OURS: 1, TUTORIAL: 12, BARE: 1}
    write(rows, machine, tmp_path)
    written = [(row["side"], row["processor"]) for row in read_rows(tmp_path)]
    assert written == [(side, "some") for side in (OURS, TUTORIAL, BARE)]
    text = (tmp_path / "benchmarks.md").read_text(encoding="utf-8")
    assert text == markdown(rows, machine)
    assert "1.00x (0.50 to 1.50) of the bare loop's time" in text


@pytest.mark.slow
def test_a_quick_run_gives_every_row_with_sane_figures(tmp_path: Path) -> None:
    options = "--quick --rounds 1 --threads 1 --processor-time --only mnist-mlp jpegs-cnn --out"
    command = [warm_python.executable(), "-m", "benchmarks", *options.split(), str(tmp_path)]
    ran = run_command(command, ROOT, os.environ | {"PYTHONPATH": str(ROOT / "src")})
    assert ran.returncode == 0, ran.stderr  # it refuses sides whose networks end with other losses
    rows = read_rows(tmp_path)
    assert {row["workload"] for row in rows} == {"mnist-mlp", "jpegs-cnn"}
    for row in rows:
        assert 0.001 < float(row["epoch_seconds"]) < 60
        assert float(row["ratio_lowest"]) <= float(row["ratio"]) <= float(row["ratio_highest"])
        assert row["side"] != TUTORIAL or float(row["ratio"]) > 0.5


TUTORIAL_PROGRAM = """
import torch
weight = torch.nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([weight])
for step in range(COUNT):
    (weight ** 2).sum().backward()
    optimizer.step()
open("ended", "w").write(open("data").read())
"""


def offer_program(programs: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Write a program to the folder of the programs, whose original is `TUTORIAL_PROGRAM`."""
    program = tutorials.Program(
        "some/repository",
        "folder/train.py",
        "some commit",
        hashlib.sha256(TUTORIAL_PROGRAM.encode()).hexdigest(),
        "",
        lambda folder: (folder / "data").write_text("made up"),
        (("COUNT", "300"),),
    )
    monkeypatch.setitem(tutorials.PROGRAMS, "tiny", program)
    (programs / "tiny").mkdir(parents=True)
    (programs / "tiny/train.py").write_text(text, encoding="utf-8")


def test_a_program_is_asked_about_and_run_with_its_data_and_its_changes_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer_program(tmp_path / "programs", monkeypatch, TUTORIAL_PROGRAM)
    monkeypatch.setattr(sys, "executable", warm_python.executable())
    row = ask.program("tiny", tmp_path / "programs", tmp_path)
    assert (tmp_path / "program/ended").read_text(encoding="utf-8") == "made up"
    changed = (tmp_path / "program/train.py").read_text(encoding="utf-8")
    assert changed == TUTORIAL_PROGRAM.replace("COUNT", "300")
    assert row.asked.timed.of == row.ran.timed.of == 300


def test_a_program_that_is_not_the_original_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer_program(tmp_path / "programs", monkeypatch, TUTORIAL_PROGRAM + "# changed")
    with pytest.raises(SystemExit, match=r"tiny.train\.py.*some/repository"):
        ask.program("tiny", tmp_path / "programs", tmp_path)


def test_a_missing_program_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ask.main(["--only", "vae", "--programs", str(tmp_path)])
    assert "vae" in capsys.readouterr().out


def test_a_part_is_ended_when_its_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(gpu_probe.PARTS, "tests", replace(gpu_probe.PARTS["tests"], seconds=0))
    gpu_probe.start_part("tests", tmp_path)
    kept = {finding.what: finding for finding in findings.read([tmp_path / "tests.jsonl"])}
    assert kept["the rest"].note == "not done within 0 s"
    assert kept["took"].unit == "s"


PROBES_HERE = """
from benchmarks import gpu_probe
gpu_probe.start_part = gpu_probe.run_part  # each process would import torch
gpu_probe.main()
"""


@pytest.mark.slow
def test_it_raises_no_false_alarm_on_a_bare_machine(tmp_path: Path) -> None:
    """A recorder stands in for CUDA in tests/test_gpu.py. No clock can wait for it."""
    tests = ROOT / "tests"
    own = {
        "PYTHONPATH": os.pathsep.join(map(str, (tests / "bare", tests, ROOT / "src"))),
        "PYTEST_PLUGINS": "recorded_gpu",
        "PYTEST_ADDOPTS": "-k 'fp32 and recorded'",
    }
    command = [sys.executable, "-c", PROBES_HERE, "--out", str(tmp_path), "--only"]
    command += ["tests", "memory"]
    subprocess.run(command, cwd=ROOT, env=os.environ | own, check=True)
    found = json.loads((tmp_path / "probe.json").read_bytes())["findings"]
    assert [each for each in found if str(each["value"]).startswith(("FAILED", "OTHER"))] == []
    assert len([each for each in found if each["value"] == "passed"]) == 3


def test_a_replay_predicts_each_recorded_training_by_its_windows(tmp_path: Path) -> None:
    for run in (1, 2):
        coverage.train("mlp", 1.0, tmp_path / f"mlp.quiet.{run}.npz")
    *_, row = coverage.rows(list(coverage.read(tmp_path)), [0.4])
    assert re.match(r"\| quiet \| 0.4 s \| 2 \| (\d+% \(.*\)|-) \| ", row.text)


def test_nine_in_ten_ranges_hold_the_next_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one run's error in place of what two runs differ by, too few do."""
    coverage.main([])
    monkeypatch.setattr(times, "MACHINE", times.MACHINE / math.sqrt(2))
    with pytest.raises(SystemExit, match=r"fewer than 85% .* another run"):
        coverage.main([])
