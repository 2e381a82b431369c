"""The workflows for GitHub: this project's, and the one that users copy."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import ROOT

WORKFLOWS = [ROOT / ".github/workflows/test.yml", ROOT / "examples/ci/pull-request.yml"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: str(path.name))
def test_a_workflow_runs_commands_that_exist(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    ran = "\n".join(step.get("run", "") for step in steps)
    named = set(re.findall(r"photofinish (\w+)", ran))
    targets = re.findall(r"^make (\w+)", ran, re.MULTILINE)
    command = [sys.executable, "-m", "photofinish", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert named <= set(re.findall(r"^    (\w+)  ", shown, re.MULTILINE))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(f"\n{target}:" in makefile for target in targets)
    assert named or targets
