"""A stage depends on the source files that it imports."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import PrepareStage, run_command
from source_imports import ROOT, transitive_sources

from photofinish.files import write_bytes_atomically
from photofinish.machine.fingerprint import GpuTarget
from photofinish.planning.source_code import stage_code
from photofinish.results.measured import MEASURED, MEASURED_FOLDER, NotMeasured, read_measured

SCRIPTS = sorted((ROOT / "stages").glob("[!_]*.py"))
SHOWS = tuple(
    f"src/photofinish/{each}" for each in ("tracking/", "wording.py", "answer/", "reporting/")
)
"""They show what a stage does, and are what `compare` writes."""
DATA = "photofinish/data"
MLFLOW_PROCESS = ROOT / "src/photofinish/tracking/mlflow_worker.py"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_stage_depends_on_the_files_that_it_imports(script: Path) -> None:
    without = () if script.stem == "compare" else SHOWS
    sources = transitive_sources(script, without)
    if f"src/{DATA}/sources.py" in sources:
        for source in (ROOT / "src" / DATA).glob("*_source.py"):
            sources += [f"src/{DATA}/{source.name}", *transitive_sources(source, without)]
    if script.stem == "compare":
        sources += transitive_sources(MLFLOW_PROCESS)
    imported = {name.removeprefix("src/") for name in sources}
    assert {name for name in stage_code(script).root if name.endswith(".py")} == imported


RUN_BY = {
    "": (
        *("config/messages.py", "config/other_names.py", "config/problems.py"),
        *("config/loader.py", "commands/cli.py", "planning/checks.py", "planning/plan.py"),
        "reporting/job_line.py",
    ),
    "compare": (
        *("wording.py", "reporting/report.py", "reporting/templates/report.css"),
        "reporting/templates.py",
        *("answer/comparison.py", "tracking/mlflow_worker.py", "tracking/documents.py"),
        *("config/compare.py", "config/tables/prices.csv", "results/figures.py"),
    ),
    "split": ("data/split.py",),
    "measure": ("measure/measure.py", "measure/attribution.py"),
    "compare measure script": ("results/measured.py",),
    "script": ("inside/hooks.py", "inside/recorder.py", "scripts/run_script.py"),
    "measure train": ("training/trainer.py", "training/step.py"),
    "train": ("runs/train.py", "training/checkpoint.py"),
    "evaluate measure train": ("training/losses.py",),
    "evaluate": ("evaluation/evaluate.py",),
}
"""Files that some stages and no others run, by the stages."""


def test_an_edited_file_runs_the_stages_that_import_it() -> None:
    """DVC runs a stage again if its file below data/plan/code changes (test_pipeline.py)."""
    codes = {script.stem: stage_code(script).root for script in SCRIPTS if script.stem != "plan"}
    for stages, files in RUN_BY.items():
        for file in files:
            running = {stage for stage in codes if f"photofinish/{file}" in codes[stage]}
            assert running == set(stages.split()), file


STAGES: dict[str, Any] = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["stages"]


def test_a_stage_depends_on_the_code_of_its_script_by_one_file() -> None:
    for name in STAGES.keys() - {"plan"}:
        stage = STAGES[name].get("do", STAGES[name])
        code = [dep for dep in stage["deps"] if dep.startswith("data/plan/code/") or ".py" in dep]
        assert code == [f"data/plan/code/{Path(stage['cmd'].split()[1]).stem}.json"], name


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
    ran = run_command([sys.executable, str(script)], tmp_path, environment)
    assert Path(ran.stdout.strip()) == elsewhere / "split.py"


def test_training_loads_no_measuring(prepare_stage: PrepareStage) -> None:
    stage = prepare_stage(epochs=1)
    output, _ = stage.fork().communicate()
    loaded = (stage.folder / "modules.txt").read_text(encoding="utf-8").split()
    assert "photofinish.training.trainer" in loaded, output
    packages = {module.split(".")[1] for module in loaded if module.startswith("photofinish.")}
    assert not packages & {"measure", "inside", "answer", "reporting"}


def test_a_missing_gpu_is_recorded_without_torch(prepare_stage: PrepareStage) -> None:
    stage = replace(prepare_stage(), device="gpu")
    missing: dict[str, Any] = {"kind": "auto", "count": 1, "if_missing": "skip", "missing": "none"}
    host = GpuTarget(**missing, accelerators=(), threads=None, cpu=None, software=None)
    write_bytes_atomically(stage.folder / "gpu.json", host.model_dump_json().encode())
    code = "import runpy, sys; del sys.argv[0]; sys.path.insert(0, sys.argv[0][:-11])\n"
    code += "runpy.run_path(sys.argv[0], run_name='__main__'); assert 'torch' not in sys.modules"
    ran = run_command([sys.executable, "-c", code, *stage.measuring()], stage.folder, {})
    assert ran.returncode == 0, ran.stderr
    record = read_measured(stage.out / MEASURED_FOLDER / MEASURED)
    assert isinstance(record, NotMeasured)
    assert "none" in record.reason
