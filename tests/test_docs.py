"""The documents, and the workflows for GitHub, name what exists."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
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


def test_every_command_that_the_documents_and_workflows_name_exists() -> None:
    workflows = [ROOT / ".github/workflows/test.yml", ROOT / "examples/ci/pull-request.yml"]
    text = "\n".join(path.read_text(encoding="utf-8") for path in [*DOCUMENTS, *workflows])
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    named = set(re.findall(r"(?:[`$] ?|run: )make ([a-z]+)", text))
    assert {"repro", "test", "ui"} <= named <= targets
    command = [sys.executable, "-m", "photofinish", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    named = set(re.findall(r"(?:^\$ |run: |^ {8,})photofinish (\w+)", text, re.MULTILINE))
    assert {"init", "run", "gate"} <= named <= set(re.findall(r"^    (\w+)  ", shown, re.MULTILINE))


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
