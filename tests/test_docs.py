"""The documents say what is there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from pydantic import BaseModel

from photofinish.config import compare as comparing
from photofinish.config import datasets, devices, networks
from photofinish.config import experiment as training
from photofinish.config.loader import read_params

DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "reference" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
SETTINGS = [  # but what stages write, no user
    value
    for module in (comparing, datasets, devices, networks, training)
    for value in vars(module).values()
    if isinstance(value, type) and issubclass(value, BaseModel) and value.__module__ == module.__name__
    if value not in (networks.FetchedWeights, networks.InitialWeights) and not value.__name__.endswith("Plan")
]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: settings.__name__)
def test_every_setting_is_in_the_reference(settings: type[BaseModel]) -> None:
    reference = (ROOT / "docs" / "params.md").read_text(encoding="utf-8")
    words = set(re.findall(r"[a-z_]+", reference))
    assert settings.model_fields.keys() <= words


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_to_a_file_leads_somewhere(document: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", document.read_text(encoding="utf-8"))
    assert [link for link in links if not link.startswith("http") and not (document.parent / link).exists()] == []


def test_every_make_target_the_documents_name_exists() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in DOCUMENTS)
    named = set(re.findall(r"[`$] ?make ([a-z]+)", text))
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert {"repro", "test", "ui"} <= named <= targets


def test_the_params_file_that_comes_with_the_project_is_right() -> None:
    assert list(read_params(ROOT / "params.yaml").experiments) == ["digits-linear", "digits-mlp", "digits-cnn"]


def test_dvc_sends_no_usage_data() -> None:
    config = (ROOT / ".dvc" / "config").read_text(encoding="utf-8")
    assert "analytics = false" in config
    assert "check_update = false" in config


def test_mlflow_sends_no_usage_data_whoever_starts_it() -> None:
    """`make setup` sees to it in the environment, so that a bare `mlflow ui` keeps quiet too."""
    environment = {name: value for name, value in os.environ.items() if name != "MLFLOW_DISABLE_TELEMETRY"}
    asked = [sys.executable, "-c", "import os; print(os.environ.get('MLFLOW_DISABLE_TELEMETRY'))"]
    ran = subprocess.run(asked, env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "true"
