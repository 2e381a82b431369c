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
