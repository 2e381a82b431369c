"""dvc.yaml names what each stage reads, no more and no less."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from source_imports import ROOT

STAGES: dict[str, Any] = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["stages"]


def stage_body(name: str) -> dict[str, Any]:
    stage = STAGES[name]
    body: dict[str, Any] = stage.get("do", stage)
    return body


def test_the_stages_are_the_eight_of_the_pipeline() -> None:
    before_training = ["plan", "download", "split", "download-weights"]
    assert list(STAGES) == [*before_training, "train-cpu", "train-gpu", "evaluate", "compare"]


@pytest.mark.parametrize("name", [name for name in STAGES if name != "plan"])
def test_a_stage_depends_on_the_code_of_the_script_it_runs(name: str) -> None:
    _python, script, *_arguments = stage_body(name)["cmd"].split()
    code = [dep for dep in stage_body(name)["deps"] if dep.startswith("data/plan/code/")]
    assert code == [f"data/plan/code/{Path(script).stem}.json"]


def test_no_stage_lists_sources_itself() -> None:
    assert not [dep for name in STAGES for dep in stage_body(name).get("deps", []) if dep.endswith(".py")]


def test_plan_alone_runs_every_time_and_depends_on_all_of_params_yaml() -> None:
    """As a file, not as DVC's parameters: to DVC, the numbers 1 and 1.0 and the word true are all the same."""
    assert [name for name in STAGES if stage_body(name).get("always_changed")] == ["plan"]
    assert stage_body("plan")["deps"] == ["params.yaml"]


@pytest.mark.parametrize("name", ["train-cpu", "train-gpu", "evaluate"])
def test_images_are_a_dep_as_the_whole_folder_that_dvc_is_to_pull(name: str) -> None:
    assert [dep for dep in stage_body(name)["deps"] if "splits" in dep] == ["data/splits/${item.dataset}"]


@pytest.mark.parametrize("name", ["train-cpu", "train-gpu"])
def test_a_training_stage_depends_on_no_weights_but_its_own(name: str) -> None:
    assert [dep for dep in stage_body(name)["deps"] if dep.startswith("data/weights")] == ["data/weights/${key}"]


def test_prices_and_references_are_deps_of_compare_alone() -> None:
    own = {"data/plan/compare.json", "reference"}
    assert {name for name in STAGES if own & set(stage_body(name).get("deps", []))} == {"compare"}
    assert own <= set(stage_body("compare")["deps"])


def test_the_templates_of_the_report_and_the_tables_of_accelerators_are_deps_of_compare() -> None:
    assert {"src/photofinish/report/templates", "src/photofinish/config/tables"} <= set(stage_body("compare")["deps"])


def test_scores_depend_on_what_was_learned_and_not_on_how_long_it_took() -> None:
    results = [dep for dep in stage_body("evaluate")["deps"] if dep.startswith("results")]
    assert results == ["results/${key}/cpu/model", "results/${key}/gpu/model"]
