"""A stage depends on the source files that it imports."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import PrepareStage, run_command
from source_imports import ROOT, transitive_sources

from photofinish.custom.code_text import code_text
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
        *("config/problems.py", "config/loader.py"),
        *("commands/cli.py", "planning/checks.py", "planning/plan.py"),
    ),
    "compare": (
        *("wording.py", "reporting/report.py", "reporting/templates/report.css"),
        *("reporting/templates.py", "answer/record.py"),
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


CODE = """\
# A comment
def f(x):
    '''Return it.'''

    return g(x,  # more
        f"{x['a']:>{w}} # {{no}} comment {x!r}"
        f'''
        {x}

        é''' "#", x if x else 0x1f)


class A:
    field: int = 0
    r'''A field's
    text.'''


y = '''a

  # b'''
"""
TEXT = """\
def f ( x ) :
 return g ( x , f"{x['a']:>{w}} # {{no}} comment {x!r}" f'''
        {x}

        é''' "#" , x if x else 0x1f )
class A :
 field : int = 0
y = '''a

  # b'''"""


def test_code_is_the_text_of_its_statements_without_comments_and_docstrings() -> None:
    assert code_text(CODE.encode(), with_docstrings=False).decode() == TEXT


def test_code_with_docstrings_is_the_same_program() -> None:
    for file in (ROOT / "src/photofinish/inside").glob("*.py"):
        source = file.read_bytes()
        code = code_text(source, with_docstrings=True)
        assert ast.dump(ast.parse(code)) == ast.dump(ast.parse(source)), file


PYTHONS = [
    *filter(None, (shutil.which(f"python3.{minor}") for minor in range(11, 20))),
    *map(str, Path.home().glob(".pyenv/versions/3.*/bin/python")),
    *map(str, Path.home().glob(".local/share/uv/python/cpython-3.*/bin/python")),
]
READ = """\
import sys
from pathlib import Path
assert sys.version_info >= (3, 11)
sys.path.insert(0, "src")
from photofinish.custom.code_text import code_text
files = [*sorted(Path("tests").glob("*.py"))[::8], *sorted(Path("stages").glob("*.py"))]
code = [code_text(file.read_bytes(), False) for file in files]
sys.stdout.buffer.write(b"\\n".join([*code, code_text(sys.stdin.buffer.read(), True)]))
"""


def test_each_version_of_python_reads_the_same_code() -> None:
    for python in PYTHONS:
        own, other = (
            subprocess.run([each, "-c", READ], cwd=ROOT, input=CODE.encode(), capture_output=True)
            for each in (sys.executable, python)
        )
        starts = other.returncode == 0  # a shim of pyenv may not
        assert own.stdout == other.stdout or not starts, python


@pytest.mark.parametrize(
    ("source", "equal", "other"),
    [
        ("x = 1\n", "x = 1  # one\n\n\n# two", "x = 2\n"),
        ("if a:\n  b\nc\n", "if a:\r\n  # why\r\n\tb\r\nc", "if a:\n  b\n  c\n"),
        ("f(a, b)\n", "f(\n    a,  # first\n    b)\n", "f(a, b, c)\n"),
        ("x = 'a # b'\n", "x = 'a # b' # c\n", "x = 'a # c'\n"),
        ("x = f'{a}# b'\n", "x = f'{a}# b' # c\n", "x = f'{a}# c'\n"),
        ("x = '''a\n\nb'''\n", "\nx = '''a\n\nb''' \n", "x = '''a\nb'''\n"),
        ("def f():\n  'A.'\n", "def f():\n  # a\n  'A.'\n", "def f():\n  'B.'\n"),
        ("f(x)\n", "f(x)  # type: ignore[no]\n", "f(x)  # type: (int) -> int\n"),
        ("f(x)\n", "f(x)  # type: ignore", "f(x)  # type:(int) -> int\n"),
        ("#!a\nf(x)\n", "#!a\n# why\nf(x)\n", "#!b\nf(x)\n"),
        ('f"{a["# b"]}"\n', 'f"{a["# b"]}"\n', 'f"{a["# c"]}"\n'),  # from Python 3.12 on
        ("# coding: hex\nx", "# coding: hex\nx", "# coding: hex\ny"),
        ("import a\n", "import a  # needs b\n", "# /// script\n# needs b\n# ///\nimport a\n"),
        ("{{ no Python # a", "{{ no Python # a", "{{ no Python # b"),
        ("x = 'no Python # a", "x = 'no Python # a", "x = 'no Python # b"),
        ("# coding: latin-1\nx = 'é'", "# coding: utf-8\nx = 'Ã©'", "# coding: utf-8\nx = 'é'"),
    ],
)
def test_a_users_code_is_all_but_its_comments_and_spacing(
    source: str, equal: str, other: str
) -> None:
    codes = [code_text(each.encode(), with_docstrings=True) for each in (source, equal, other)]
    assert codes[0] == codes[1]
    assert codes[0] != codes[2]


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
