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

SCRIPTS = sorted((ROOT / "stages").glob("*.py"))
_CODE_IN = "import sys; from pathlib import Path; from photofinish.source_code import stage_code;"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_it_holds_exactly_the_files_that_python_would_import(script: Path) -> None:
    code = {f"src/{name}" if name.startswith("photofinish/") else name for name in stage_code(script).root}
    assert code == set(transitive_sources(script))
    assert f"stages/{script.name}" in code


def test_a_change_to_the_report_does_not_touch_training() -> None:
    later = ("photofinish/report/", "photofinish/comparing/")
    assert [name for name in stage_code(ROOT / "stages/compare.py").root if name.startswith(later)]
    assert not [name for name in stage_code(ROOT / "stages/train.py").root if name.startswith(later)]


def test_each_file_has_its_sha256() -> None:
    code = stage_code(ROOT / "stages/train.py").root
    assert code["photofinish/training/trainer.py"] == sha256_of_file(ROOT / "src/photofinish/training/trainer.py")
    assert code["stages/train.py"] == sha256_of_file(ROOT / "stages/train.py")


def test_every_way_to_import_counts_but_what_is_only_for_the_type_checker(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "src/photofinish", tmp_path / "photofinish", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "stages").mkdir()
    script = tmp_path / "stages" / "some.py"
    script.write_text(
        "from typing import TYPE_CHECKING\n"
        "import photofinish.wording\n"
        "from photofinish.machine import (\n    cpu,\n    software as versions,\n)\n"
        "if TYPE_CHECKING:\n    from photofinish.results import learned\n\n    from photofinish.report import report\n"
        "def later():\n    from photofinish.training.clock import Clock\n"
    )
    command = [sys.executable, "-c", f"{_CODE_IN} print(*stage_code(Path(sys.argv[1])).root)", str(script)]
    environment = {"PYTHONPATH": str(tmp_path), "PATH": ""}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert set(ran.stdout.split()) == {
        "photofinish/__init__.py",
        "photofinish/machine/__init__.py",
        "photofinish/machine/cpu.py",
        "photofinish/machine/software.py",
        "photofinish/training/__init__.py",
        "photofinish/training/clock.py",
        "photofinish/wording.py",
        "stages/some.py",
    }
