"""The probe keeps its findings if a part is ended, and lists what it could not check."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT))  # the benchmarks are beside the package, not in it

from benchmarks import gpu_probe
from benchmarks.probe import findings
from benchmarks.probe.findings import Finding, Findings
from photofinish.errors import UserError


def test_findings_are_printed_and_kept_at_once_and_a_cut_line_is_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "steps.jsonl"
    found = Findings("steps", file)
    found.add("a wait", 3.25, "us", variant="fp32", note="idle")
    found.skip("a graph's node", "there is no GPU")
    with found.failures_kept("captured steps", "linear"):
        raise UserError("they can't be captured: other bits")
    with file.open("a", encoding="utf-8") as text:
        text.write('{"part": "st')
    kept = findings.read([file])
    assert kept[:2] == [
        Finding("steps", "a wait", "fp32", 3.25, "us", "idle"),
        Finding("steps", "a graph's node", "", None, "", "there is no GPU"),
    ]
    assert kept[2].value == "FAILED"
    assert kept[2].note.endswith("other bits")
    assert capsys.readouterr().out.splitlines() == [str(each) for each in kept]
    assert str(kept[0]) == "steps: a wait (fp32): 3.25 us  [idle]"
    assert str(kept[1]) == "steps: a graph's node: NOT CHECKED  [there is no GPU]"
    findings.write(tmp_path, {"device": "some GPU"}, kept)
    whole = json.loads((tmp_path / "probe.json").read_bytes())
    assert whole["provenance"] == {"device": "some GPU"}
    assert [each["value"] for each in whole["findings"]] == [3.25, None, "FAILED"]


def test_a_part_is_ended_when_its_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(gpu_probe.PARTS, "steps", replace(gpu_probe.PARTS["steps"], seconds=0))
    gpu_probe.start_part("steps", tmp_path, None)
    kept = {finding.what: finding for finding in findings.read([tmp_path / "steps.jsonl"])}
    assert kept["the rest"].note == "not done within 0 s"
    assert kept["took"].unit == "s"


@pytest.mark.slow
def test_it_raises_no_false_alarm_on_a_bare_machine(tmp_path: Path) -> None:
    """A recorder stands in for CUDA in tests/test_gpu.py. No clock can wait for it."""
    tests = ROOT / "tests"
    own = {
        "PYTHONPATH": os.pathsep.join(map(str, (tests / "bare", tests, ROOT / "src"))),
        "PYTEST_PLUGINS": "recorded_gpu",
        "PYTEST_ADDOPTS": "-k 'fp32 and recorded'",
    }
    command = [sys.executable, "-m", "benchmarks.gpu_probe", "--out", str(tmp_path), "--only"]
    command += ["tests", "steps", "networks"]
    subprocess.run(command, cwd=ROOT, env=os.environ | own, check=True)
    found = json.loads((tmp_path / "probe.json").read_bytes())["findings"]
    assert [each for each in found if str(each["value"]).startswith(("FAILED", "OTHER"))] == []
    assert len([each for each in found if each["value"] == "passed"]) == 3
