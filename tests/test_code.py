"""A stage depends on the source files that it runs, and an edit of the report trains nothing."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from source_imports import ROOT, transitive_sources

from photofinish.files import sha256_of_file
from photofinish.planning.source_code import CODE_OF_STAGES, stage_code

SCRIPTS = sorted((ROOT / "stages").glob("[!_]*.py"))
MIRRORS = "photofinish/tracking/"
"""Training copies its results into MLflow, which does not influence them."""


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_stage_depends_on_every_file_that_it_imports(script: Path) -> None:
    imported = {name.removeprefix("src/") for name in transitive_sources(script)}
    missing = imported - stage_code(script).root.keys()
    if script.stem == "train":
        missing = {name for name in missing if not name.startswith(MIRRORS)}
    assert missing == set()


@pytest.mark.parametrize("stage", CODE_OF_STAGES)
def test_a_stage_depends_on_no_package_that_it_does_not_run(stage: str) -> None:
    scripts = {"remote": ROOT / "src/photofinish/remote/worker.py"}
    imported = transitive_sources(scripts.get(stage, ROOT / f"stages/{stage}.py"))
    unused = []
    for name in CODE_OF_STAGES[stage]:
        places = (f"src/photofinish/{name}/", f"src/photofinish/{name}.py")
        if not any(path.startswith(places) for path in imported):
            unused.append(name)
    assert unused == []


@pytest.mark.parametrize(
    ("edited", "stages"),
    [
        ("photofinish/reporting/report.py", {"compare"}),
        ("photofinish/training/trainer.py", {"train"}),
        ("photofinish/training/losses.py", {"train", "evaluate"}),
        ("photofinish/evaluation/judges.py", {"evaluate"}),
        ("photofinish/data/split.py", {"plan", "download", "split"}),
        ("photofinish/tracking/mlflow_worker.py", {"compare"}),
        ("photofinish/config/tables/prices.csv", {"compare"}),
        ("photofinish/reporting/templates/report.css", {"compare"}),
        ("stages/train.py", {"train"}),
    ],
)
def test_an_edit_runs_only_the_stages_again_that_run_the_file(
    edited: str, stages: set[str]
) -> None:
    code = {script.stem: stage_code(script) for script in SCRIPTS}
    assert {stage for stage, files in code.items() if edited in files.root} == stages
    path = ROOT / edited if edited.startswith("stages") else ROOT / "src" / edited
    for stage in stages:
        files = code[stage].root
        assert files[edited] == sha256_of_file(path)
        other = code[stage].model_copy(update={"root": {**files, edited: "another"}})
        assert other.sha256 != code[stage].sha256


def test_scripts_do_not_hide_packages_and_custom_files_of_their_names(tmp_path: Path) -> None:
    stages, elsewhere = tmp_path / "stages", tmp_path / "elsewhere"
    shutil.copytree(ROOT / "stages", stages)
    elsewhere.mkdir()
    (elsewhere / "split.py").touch()
    script = stages / "train.py"
    script.write_text("from _start import run_stage\nimport split\nprint(split.__file__)\n")
    environment = {"PYTHONPATH": f"{elsewhere}:{ROOT / 'src'}"}
    ran = subprocess.run(
        [sys.executable, str(script)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert Path(ran.stdout.strip()) == elsewhere / "split.py"
