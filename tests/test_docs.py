"""The documents, and the workflows for GitHub, name what exists."""

from __future__ import annotations

import inspect
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from conftest import ROOT
from pydantic import BaseModel

from photofinish.answer import estimates
from photofinish.answer.prices import cheapest_machine
from photofinish.commands import cli
from photofinish.config import (
    compare,
    datasets,
    devices,
    experiment,
    losses_and_metrics,
    networks,
    scripts,
)
from photofinish.config.experiment import LoaderInput
from photofinish.config.loader import _BUILT_IN

DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *(ROOT / folder / "README.md" for folder in ("benchmarks", "examples", "reference")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
USERS_PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in DOCUMENTS
    if path.is_relative_to(ROOT / "docs") or path == ROOT / "README.md"
}
MOST_WORDS = 6_400
"""Words outside of commands and tables, which are looked up."""
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
    for module in (compare, datasets, devices, experiment, losses_and_metrics, networks, scripts)
    for name, value in vars(module).items()
    if isinstance(value, type) and issubclass(value, BaseModel)
    if value.__module__ == module.__name__ and not name.endswith(WRITTEN_BY_STAGES)
]
PARAMS = (ROOT / "docs" / "params.md").read_text(encoding="utf-8")
TABLES = dict(re.findall(r"<!-- (\w+) -->\n\n((?:\|.*\n)+)", PARAMS))
FIRST_SENTENCE = re.compile(r'^    (\w+): .*\n    """((?s:.*?)\.)(?:\s|")', re.MULTILINE)
(COMMANDS,) = (dict(it.choices or {}) for it in cli._parser()._actions if it.dest == "command")
LIMITS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: settings.__name__)
def test_every_setting_is_in_the_reference(settings: type[BaseModel]) -> None:
    code = " ".join(re.findall(r"`[^`]+`", PARAMS.replace("```", "")))
    assert settings.model_fields.keys() <= set(re.findall(r"[a-z_]+", code))


@pytest.mark.parametrize("name", TABLES)
def test_a_table_of_settings_has_the_codes_types_defaults_and_texts(name: str) -> None:
    (settings,) = (each for each in SETTINGS if each.__name__ == name)
    cells = [[cell.strip() for cell in row.split("|")[1:-1]] for row in TABLES[name].splitlines()]
    rows = {key.strip("`"): values for key, *values in cells[2:]}
    fields, types = settings.model_fields, settings.model_json_schema()["properties"]
    assert rows.keys() == fields.keys()
    bases = [base for base in settings.__mro__[::-1] if base.__module__.startswith("photofinish")]
    texts = dict(FIRST_SENTENCE.findall("".join(map(inspect.getsource, bases))))
    for key, (values, default, text) in rows.items():
        assert values == (_values(types[key]) or values), key
        own = _BUILT_IN.get(key, fields[key].default)
        other = "required" if fields[key].is_required() else default
        assert default == (_as_code(own) if isinstance(own, int | float | str) else other), key
        assert text.startswith(" ".join(texts.get(key, "").split())), key


def _values(schema: dict[str, Any]) -> str | None:
    """Return a field's values as the page has them, or None where it has them in other words."""
    options = [each for each in schema.get("anyOf", [schema]) if each.get("type") != "null"]
    names = [True, False] if options[0].get("type") == "boolean" else options[0].get("enum")
    if names or len(options) > 1:
        return ", ".join(map(_as_code, names)) if len(options) == 1 else None
    ends = {sign: options[0].get(name, 2**31) for name, sign in LIMITS.items()}
    limits = [f"{sign} {end:g}" for sign, end in ends.items() if end < 2**31]
    return f"{options[0]['type']} {', '.join(limits)}" if limits else None


def _as_code(value: Any) -> str:
    return f"{value:g}" if type(value) in (int, float) else f"`{json.dumps(value).strip(chr(34))}`"


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
    text = "\n".join(USERS_PAGES.values())
    read = re.sub(r"^ *```.*?^ *```|^\|.*?$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert len(re.findall(r"\S*\w\S*", read)) <= MOST_WORDS
    assert "TODO" not in text


def test_prices_hours_and_names_of_gpus_are_those_of_the_tables() -> None:
    page = USERS_PAGES["docs/rent-buy-stay.md"]
    prices = [price for name in compare.SHORT_LIST if (price := cheapest_machine(name))]
    for each in prices:
        machine = f"{each.cloud} {each.instance} | {each.region} | {each.as_of}"
        assert f"| {each.accelerator} | {each.usd_per_hour:.3g} | {machine} |" in page
    for card in (250, 500, 1000, 2000):
        hours = [float(f"{card / each.usd_per_hour:.2g}") for each in prices]
        assert f"| {card:,} USD | {' | '.join(f'{each:,.0f} h' for each in hours)} |" in page
    names = set(re.findall(r"[A-Z][\w-]*", page.partition("## Names")[2]))
    assert compare.accelerators().keys() <= names


def test_every_option_is_on_the_page_of_commands() -> None:
    page = USERS_PAGES["docs/commands.md"]
    for name, command in COMMANDS.items():
        assert f"photofinish {name}" in page or f"| `{name}" in page
        assert set(re.findall(r"--[a-z-]+", command.format_help())) <= set(page.split("`")), name


@pytest.mark.parametrize("code", PYTHON)
def test_python_in_the_pages_runs(code: str, tmp_path: Path) -> None:
    (tmp_path / "page.py").write_text(code, encoding="utf-8")
    loader = [(torch.zeros(2), torch.zeros(2))]
    runpy.run_path(str(tmp_path / "page.py"), {"loader": loader})


@pytest.mark.parametrize(
    ("figure", "pages"),
    [
        (f"{estimates.LONG_STEPS_WITHIN:.2f}", {"README.md", "docs/method.md"}),
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
    named = set(re.findall(r"(?:^\$ |run: |^ {8,})photofinish (\w+)", text, re.MULTILINE))
    assert {"init", "run", "gate"} <= named <= COMMANDS.keys()


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
    line = yaml.safe_load(PARAMS[PARAMS.index("{name: loader, w") :].partition("`")[0])
    assert LoaderInput(**line) == LoaderInput(name="loader")
