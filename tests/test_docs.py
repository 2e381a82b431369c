"""The documents, and the workflows for GitHub, name what exists."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from conftest import ROOT
from pydantic import BaseModel

from photofinish.answer import estimates
from photofinish.config import compare, datasets, devices, experiment, networks
from photofinish.config.experiment import LoaderInput

DOCUMENTS = [
    *(ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "reference" / "README.md"),
    *sorted((ROOT / "docs").rglob("*.md")),
]
USERS_PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in DOCUMENTS
    if path.is_relative_to(ROOT / "docs") or path == ROOT / "README.md"
}
MOST_WORDS = 10_300
PYTHON = [
    pytest.param(code, id=f"{page}:{index}")
    for page, text in USERS_PAGES.items()
    for index, code in enumerate(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
]
FAST_CONTEXT, _, SLOW_CONTEXT = estimates.CONTEXT_SECONDS
_, LAUNCH, SLOW_LAUNCH = (1e6 * seconds for seconds in estimates.LAUNCH_SECONDS)
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
def test_every_link_leads_to_a_file_and_a_heading_in_it(document: Path) -> None:
    links = re.findall(r"\]\(([^)#]*)#?([^)]*)\)", document.read_text(encoding="utf-8"))
    for name, anchor in links:
        if not name.startswith("http"):
            file = document.parent / name if name else document
            assert file.exists(), name
            assert not anchor or anchor in _anchors(file), f"{name}#{anchor}"


def _anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to a page's headings."""
    headings = re.findall(r"^#+ (.*)", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_pages_for_users_are_short() -> None:
    assert sum(len(text.split()) for text in USERS_PAGES.values()) <= MOST_WORDS


@pytest.mark.parametrize("code", PYTHON)
def test_python_in_the_pages_runs(code: str, tmp_path: Path) -> None:
    (tmp_path / "page.py").write_text(code, encoding="utf-8")
    loader = [(torch.zeros(2), torch.zeros(2))]
    runpy.run_path(str(tmp_path / "page.py"), {"loader": loader})


@pytest.mark.parametrize(
    ("figure", "pages"),
    [
        (f"{estimates.LONG_STEPS_WITHIN:g}", {"README.md", "docs/method.md"}),
        (f"{LAUNCH:g} µs", {"docs/method.md"}),
        (f"{SLOW_LAUNCH:g} µs", {"docs/method.md"}),
        (f"({FAST_CONTEXT:g} to {SLOW_CONTEXT:g} s)", {"docs/method.md"}),
    ],
)
def test_a_constant_stands_as_the_code_has_it_and_where_it_is_explained(
    figure: str, pages: set[str]
) -> None:
    assert {page for page, text in USERS_PAGES.items() if figure in text} == pages


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


def test_the_documented_loader_has_pytorchs_defaults() -> None:
    text = (ROOT / "docs/params.md").read_text("utf-8")
    line = yaml.safe_load(text[text.index("{name: loader, w") :].partition("`")[0])
    assert LoaderInput(**line) == LoaderInput(name="loader")
