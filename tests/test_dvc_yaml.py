"""The dependencies in dvc.yaml are exactly the files that each stage reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from source_imports import ROOT

STAGES: dict[str, Any] = {
    name: stage.get("do", stage)
    for name, stage in yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))[
        "stages"
    ].items()
}


def deps(name: str, start: str = "") -> list[str]:
    return [dep for dep in STAGES[name].get("deps", []) if dep.startswith(start)]


def test_plan_alone_runs_every_time_and_depends_on_all_of_params_yaml() -> None:
    """The file is a dependency, because DVC's parameters treat 1, 1.0 and true as equal."""
    assert [name for name in STAGES if STAGES[name].get("always_changed")] == ["plan"]
    assert deps("plan") == ["params.yaml"]


@pytest.mark.parametrize("name", [name for name in STAGES if name != "plan"])
def test_a_stage_depends_on_the_code_of_its_script_by_one_file(name: str) -> None:
    _python, script, *_arguments = STAGES[name]["cmd"].split()
    assert deps(name, "data/plan/code/") == [f"data/plan/code/{Path(script).stem}.json"]
    assert not [dep for dep in deps(name) if dep.endswith(".py")]


def test_prices_and_references_are_deps_of_compare_alone() -> None:
    own = {"data/plan/compare.json", "reference"}
    assert {name for name in STAGES if own & set(deps(name))} == {"compare"}
