"""The list of source files that a stage depends on: those that it runs, no more and no less."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from source_imports import ROOT, transitive_sources

from photofinish.files import sha256_of_file
from photofinish.source_code import stage_code

SCRIPTS = sorted((ROOT / "stages").glob("[!_]*.py"))
LIST_IT = """
import sys
from pathlib import Path
from photofinish.source_code import stage_code
code = stage_code(Path(sys.argv[1]))
print(code.sha256, *code.root)
assert "torch" not in sys.modules
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The package and the scripts in a folder of their own, to be changed."""
    for name in ("src/photofinish", "stages"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, tmp_path / Path(name).name, ignore=ignored)
    return tmp_path


def listed(script: Path) -> tuple[str, set[str]]:
    """The sha256 of the code that a script in the copy runs, and the files that are part of it."""
    command, environment = [sys.executable, "-c", LIST_IT, str(script)], {"PYTHONPATH": str(script.parent.parent)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    sha256, *files = ran.stdout.split()
    return sha256, set(files)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_it_holds_exactly_the_files_that_python_would_import(script: Path) -> None:
    code = {f"src/{name}" if name.startswith("photofinish/") else name for name in stage_code(script).root}
    assert code == set(transitive_sources(script))
    assert f"stages/{script.name}" in code


@pytest.mark.parametrize(
    ("topics", "stage"),
    [(("report/", "comparing/"), "compare"), (("data/images", "data/split", "data/reading"), "split")],
    ids=["the report", "how images are read"],
)
def test_a_change_to_what_training_does_not_run_does_not_touch_it(topics: tuple[str, ...], stage: str) -> None:
    elsewhere = tuple(f"photofinish/{topic}" for topic in topics)
    assert [name for name in stage_code(ROOT / f"stages/{stage}.py").root if name.startswith(elsewhere)]
    assert not [name for name in stage_code(ROOT / "stages/train.py").root if name.startswith(elsewhere)]


def test_each_file_has_its_sha256() -> None:
    code = stage_code(ROOT / "stages/train.py").root
    assert code["photofinish/training/trainer.py"] == sha256_of_file(ROOT / "src/photofinish/training/trainer.py")
    assert code["stages/train.py"] == sha256_of_file(ROOT / "stages/train.py")


def test_every_way_to_run_a_module_counts_but_what_is_only_for_the_type_checker_and_what_only_mirrors(
    copy: Path,
) -> None:
    script = copy / "stages" / "some.py"
    script.write_text(
        "from typing import TYPE_CHECKING\n"
        "import photofinish.wording\n"
        "from photofinish.machine import (\n    host,\n    accelerators as gpus,\n)\n"
        "if TYPE_CHECKING:\n    from photofinish.results import learned\n\n    from photofinish.report import report\n"
        "def later():\n    from photofinish.results import EpochTiming\n"
        "STARTED = [sys.executable, '-m', 'photofinish.starting', 'its', 'arguments']\n"
        "MIRROR = [sys.executable, '-m', 'photofinish.tracking.mlflow_worker']\n"
    )
    starting = copy / "photofinish" / "starting"
    starting.mkdir()
    (starting / "__init__.py").touch()
    (starting / "__main__.py").write_text("from photofinish.errors import run_stage\n")
    assert listed(script)[1] == {
        "photofinish/__init__.py",
        "photofinish/errors.py",
        "photofinish/files.py",
        "photofinish/machine/__init__.py",
        "photofinish/machine/accelerators.py",
        "photofinish/machine/host.py",
        "photofinish/results/__init__.py",
        "photofinish/starting/__init__.py",
        "photofinish/starting/__main__.py",
        "photofinish/wording.py",
        "stages/some.py",
    }


def test_what_tracking_starts_determines_no_result() -> None:
    assert "photofinish/tracking/client.py" in stage_code(ROOT / "stages/train.py").root
    assert "photofinish/tracking/mlflow_worker.py" not in stage_code(ROOT / "stages/train.py").root


def test_a_training_tries_metrics_and_does_not_depend_on_how_they_are_computed() -> None:
    code = stage_code(ROOT / "stages/train.py").root
    assert "photofinish/runs/run.py" in code
    assert "photofinish/runs/evaluation.py" not in code


def test_scripts_hide_neither_packages_nor_users_files_of_their_names(tmp_path: Path) -> None:
    stages, elsewhere = tmp_path / "stages", tmp_path / "elsewhere"
    shutil.copytree(ROOT / "stages", stages)
    elsewhere.mkdir()
    (elsewhere / "split.py").touch()
    (stages / "train.py").write_text("from _start import run_stage\nimport split\nprint(split.__file__)\n")
    command, environment = [sys.executable, str(stages / "train.py")], {"PYTHONPATH": f"{elsewhere}:{ROOT / 'src'}"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert Path(ran.stdout.strip()) == elsewhere / "split.py"


@pytest.mark.parametrize(
    ("changed", "begins_anew"),
    [("report/report.py", {"compare"}), ("training/trainer.py", {"train"}), ("tracking/mlflow_worker.py", set())],
)
def test_a_comma_begins_only_the_stages_anew_that_run_it(copy: Path, changed: str, begins_anew: set[str]) -> None:
    scripts = {name: copy / "stages" / f"{name}.py" for name in ("split", "train", "compare")}
    before = {name: listed(script)[0] for name, script in scripts.items()}
    with (copy / "photofinish" / changed).open("a", encoding="utf-8") as file:
        file.write('"""One comma, no more"""\n')
    assert {name for name, script in scripts.items() if listed(script)[0] != before[name]} == begins_anew
