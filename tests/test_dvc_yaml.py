"""dvc.yaml names what each stage reads, no more and no less."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from source_imports import ROOT, transitive_sources

STAGES: dict[str, Any] = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
SCRIPTS = {"download-weights": "download_weights", "train-cpu": "train", "train-gpu": "train"}


def stage_body(name: str) -> dict[str, Any]:
    stage = STAGES[name]
    body: dict[str, Any] = stage.get("do", stage)
    return body


@pytest.mark.parametrize("name", STAGES)
def test_the_deps_of_a_stage_are_exactly_the_sources_it_imports(name: str) -> None:
    listed = [dep for dep in stage_body(name)["deps"] if dep.endswith(".py")]
    assert sorted(listed) == transitive_sources(ROOT / "stages" / f"{SCRIPTS.get(name, name)}.py")


def test_the_stages_are_the_eight_of_the_pipeline() -> None:
    before_training = ["plan", "download", "split", "download-weights"]
    assert list(STAGES) == [*before_training, "train-cpu", "train-gpu", "evaluate", "compare"]


@pytest.mark.parametrize("name", ["train-cpu", "train-gpu"])
def test_a_training_stage_depends_on_no_weights_but_its_own(name: str) -> None:
    assert [dep for dep in stage_body(name)["deps"] if dep.startswith("data/weights")] == ["data/weights/${key}"]


def test_a_change_to_the_report_does_not_touch_training() -> None:
    assert not {"src/photofinish/report/report.py", "src/photofinish/comparison/table.py"} & set(
        stage_body("train-cpu")["deps"]
    )


def test_prices_and_references_are_deps_of_compare_alone() -> None:
    own = {"data/plan/compare.json", "reference"}
    assert {name for name in STAGES if own & set(stage_body(name)["deps"])} == {"compare"}
    assert own <= set(stage_body("compare")["deps"])


def test_the_templates_of_the_report_are_deps_of_compare() -> None:
    templates = [str(path.relative_to(ROOT)) for path in (ROOT / "src/photofinish/report/templates").iterdir()]
    assert set(templates) <= set(stage_body("compare")["deps"])
