"""A stage depends on the source files that it imports."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from source_imports import ROOT, transitive_sources

from photofinish.planning.source_code import stage_code

SCRIPTS = sorted((ROOT / "stages").glob("[!_]*.py"))
SHOWS = ("src/photofinish/tracking/", "src/photofinish/wording.py")
"""They show what a stage does, and are what `compare` writes."""
MLFLOW_PROCESS = ROOT / "src/photofinish/tracking/mlflow_worker.py"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_stage_depends_on_the_files_that_it_imports(script: Path) -> None:
    sources = [*transitive_sources(script)]
    if script.stem == "compare":
        sources += transitive_sources(MLFLOW_PROCESS)
    else:
        sources = [name for name in sources if not name.startswith(SHOWS)]
    imported = {name.removeprefix("src/") for name in sources}
    assert {name for name in stage_code(script).root if name.endswith(".py")} == imported


def test_a_folder_of_files_beside_modules_is_read_by_one_of_them() -> None:
    package = ROOT / "src/photofinish"
    files = [path for path in package.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    modules = {file.parent for file in files if file.suffix == ".py"}
    folders = {file.parent for file in files} - modules
    read = {Path(name) for script in SCRIPTS for name in stage_code(script).root}
    assert folders == {package.parent / name.parent for name in read if name.suffix not in (".py",)}


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
