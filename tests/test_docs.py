"""The documents, and the workflows for GitHub, name what exists."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import ROOT
from pydantic import BaseModel

from photofinish.config import compare, datasets, devices, experiment, networks

DOCUMENTS = [
    *(ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "reference" / "README.md"),
    *sorted((ROOT / "docs").rglob("*.md")),
]
WRITTEN_BY_STAGES = ("FetchedWeights", "InitialWeights", "Plan")
SETTINGS = [
    value
    for module in (compare, datasets, devices, experiment, networks)
    for name, value in vars(module).items()
    if isinstance(value, type) and issubclass(value, BaseModel)
    if value.__module__ == module.__name__ and not name.endswith(WRITTEN_BY_STAGES)
]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: settings.__name__)
def test_every_setting_is_in_the_reference(settings: type[BaseModel]) -> None:
    reference = (ROOT / "docs" / "params.md").read_text(encoding="utf-8")
    code = " ".join(re.findall(r"`[^`]+`", reference))
    assert settings.model_fields.keys() <= set(re.findall(r"[a-z_]+", code))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_to_a_file_leads_somewhere(document: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", document.read_text(encoding="utf-8"))
    files = [link for link in links if not link.startswith("http")]
    assert [file for file in files if not (document.parent / file).exists()] == []


def test_every_make_target_that_the_documents_name_exists() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in DOCUMENTS)
    named = set(re.findall(r"[`$] ?make ([a-z]+)", text))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    assert {"repro", "test", "ui"} <= named <= targets


def test_dvc_and_mlflow_send_no_usage_data() -> None:
    config = (ROOT / ".dvc" / "config").read_text(encoding="utf-8")
    assert "analytics = false" in config
    assert "check_update = false" in config
    # `make setup` sets it in the environment, so that it also holds for a bare `mlflow ui`
    name = "MLFLOW_DISABLE_TELEMETRY"
    environment = {key: value for key, value in os.environ.items() if key != name}
    code = f"import os; print(os.environ.get({name!r}))"
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "true"


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
