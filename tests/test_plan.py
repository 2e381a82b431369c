"""`plan` writes a file for each experiment, data set, device and stage, if it changed."""

from __future__ import annotations

import ast
import json
import os
import resource
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import warm_python
import yaml
from conftest import MakeExperiment, PrepareStage, run_command
from source_imports import ROOT, transitive_sources
from training_process import STAGE

from photofinish.config.base import read_plan
from photofinish.config.compare import ComparePlan
from photofinish.config.datasets import DatasetPlan
from photofinish.config.devices import CpuDevice, Devices
from photofinish.config.experiment import ExperimentPlan
from photofinish.config.loader import read_params
from photofinish.custom.code_text import code_text
from photofinish.errors import EXIT_FAILED, ConfigError, UserError
from photofinish.files import write_bytes_atomically
from photofinish.machine import fingerprint
from photofinish.machine.accelerators import AcceleratorFacts
from photofinish.machine.fingerprint import CpuTarget, GpuTarget, Machine, read_machines
from photofinish.planning.plan import write_plan
from photofinish.planning.source_code import stage_code
from photofinish.results.measured import MEASURED, MEASURED_FOLDER, NotMeasured, read_measured
from photofinish.runs.stage import train

PARAMS = """\
defaults:
  epochs: 10
  batch_size: 128
  optimizer: {name: sgd, lr: 0.1, momentum: 0.9}
datasets:
  digits: {source: digits, validation: 0.15, test: 0.15}
  few-digits: {source: digits, validation: 50, test: 50}
experiments:
  linear: {dataset: digits, model: linear}
  long: {dataset: digits, model: linear, epochs: 50, time_limit: 1.5 h}
  adam: {dataset: few-digits, model: linear, optimizer: {name: adam, lr: 0.001}}
"""
LONG_AGO = 1_000_000_000
WITH_MACHINE = f"devices: {{cpu: {{machine: %s}}}}\n{PARAMS}"


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def trainings(*names: str) -> set[str]:
    """Return the plans of both devices' trainings."""
    return {f"{folder}/{name}.json" for folder in ("experiments", "on_cpu") for name in names}


def measurements(*names: str) -> set[str]:
    """Return the plans of both devices' measurements."""
    return {f"{folder}/{name}.json" for folder in ("steps", "steps_on_cpu") for name in names}


def plan(folder: Path, text: str = PARAMS) -> set[str]:
    """Make the plan, as each `dvc repro` does. Return the files that it writes."""
    params_file = folder.parent / "params.yaml"
    params_file.write_text(text, encoding="utf-8")
    write_plan(read_params(params_file), folder, ROOT / "stages")
    written = {name for name in files_in(folder) if (folder / name).stat().st_mtime != LONG_AGO}
    for name in written:
        os.utime(folder / name, (LONG_AGO, LONG_AGO))
    return written


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the plan of PARAMS."""
    plan(tmp_path / "plan")
    return tmp_path / "plan"


def test_each_experiment_data_set_device_and_stage_has_a_file(folder: Path) -> None:
    params = read_params(folder.parent / "params.yaml")
    stages = {script.stem for script in (ROOT / "stages").glob("[!_]*.py")}
    assert files_in(folder) == {
        *(f"hosts/{device}.json" for device in ("cpu", "gpu")),
        *(f"datasets/{name}.json" for name in params.datasets),
        *trainings(*params.experiments),
        *measurements(*params.experiments),
        *(f"metrics/{name}.json" for name in params.experiments),
        *(f"code/{name}.json" for name in stages - {"plan"}),
        *("weights.json", "budget.json", "compare.json"),
    }
    adam = ExperimentPlan(**dict(params.experiments["adam"]))
    assert read_plan(folder / "experiments/adam.json", ExperimentPlan) == adam
    plans = (
        read_plan(folder / f"{name}/long.json", ExperimentPlan) for name in ("on_cpu", "steps")
    )
    assert [one.time_limit_seconds for one in plans] == [5400.0, None]
    dataset = read_plan(folder / "datasets/few-digits.json", DatasetPlan).dataset
    assert dataset == params.datasets["few-digits"]
    assert read_plan(folder / "hosts/cpu.json", CpuTarget).threads >= 1
    order = read_plan(folder / "compare.json", ComparePlan).experiments
    assert order == ("linear", "long", "adam")


@pytest.mark.parametrize(
    ("old", "new", "written"),
    [
        ("epochs: 50", "epochs: 60", trainings("long")),
        ("epochs: 10", "epochs: 11", trainings("linear", "adam")),
        ("lr: 0.1", "lr: 0.2", trainings("linear", "long")),
        ("epochs: 10", "epochs: 10\n  seed: 1", trainings("linear", "long", "adam")),
        (
            "batch_size: 128",
            "batch_size: 64",
            trainings("linear", "long", "adam") | measurements("linear", "long", "adam"),
        ),
        (
            "epochs: 50",
            "epochs: 50, cuda_graphs: 'off'",
            {"experiments/long.json", "steps/long.json"},
        ),
        ("1.5 h", "1.6 h", {"on_cpu/long.json"}),
        (
            "datasets:",
            "devices: {cpu: {time_limit: 10 min}}\ndatasets:",
            {"on_cpu/linear.json", "on_cpu/adam.json"},
        ),
        ("epochs: 10", "epochs: 10  # the usual", set()),
        ("validation: 50", "validation: 60", {"datasets/few-digits.json"}),
        ("datasets:", "devices: {gpu: {if_missing: fail}}\ndatasets:", {"hosts/gpu.json"}),
        ("datasets:", "compare: {target_accuracy: 0.9}\ndatasets:", {"compare.json"}),
    ],
)
def test_a_changed_setting_writes_only_the_plans_that_hold_it(
    folder: Path, old: str, new: str, written: set[str]
) -> None:
    assert old in PARAMS
    assert plan(folder, PARAMS.replace(old, new, 1)) == written


def test_a_file_of_known_bytes_is_not_parsed_again(tmp_path: Path, params_file: Path) -> None:
    def planned(stage: str) -> dict[str, str]:
        command = [warm_python.executable(), str(ROOT / "stages/plan.py")]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        assert run_command(command, tmp_path, environment).returncode == 0
        file = tmp_path / f"data/plan/code/{stage}.json"
        return dict(json.loads(file.read_text(encoding="utf-8")))

    params_file.write_text(PARAMS, encoding="utf-8")
    shutil.copytree(ROOT / "stages", tmp_path / "stages")
    before, kept = planned("train"), tmp_path / ".photofinish/code.json"
    hashes = json.loads(kept.read_text(encoding="utf-8"))
    kept.write_text(json.dumps(dict.fromkeys(hashes, "kept")), encoding="utf-8")
    (tmp_path / "stages/split.py").write_text("import edited\n", encoding="utf-8")
    assert planned("train") == dict.fromkeys(before, "kept")
    assert "kept" not in planned("split").values()
    kept.write_text('{"cut off', encoding="utf-8")
    assert planned("train") == before


def test_files_that_are_no_longer_needed_go_and_others_stay(folder: Path) -> None:
    (folder / "experiments/left-over.json").touch()
    (folder / "notes.txt").touch()
    before = files_in(folder)
    text = PARAMS[: PARAMS.index("  adam:")].replace("  few-digits", "  # few-digits")
    assert plan(folder, text) == {"compare.json", "weights.json", "notes.txt"}
    assert before - files_in(folder) == {
        "datasets/few-digits.json",
        "experiments/left-over.json",
        "metrics/adam.json",
        *trainings("adam"),
        *measurements("adam"),
    }


def test_another_or_no_gpu_changes_the_gpu(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (1, 2):
        gpu = AcceleratorFacts("cuda", f"GPU {number}", memory_bytes=1 << 34, driver="580.1")
        monkeypatch.setattr(fingerprint, "all_accelerators", lambda gpu=gpu: {"cuda": (gpu,)})
        assert plan(folder) == {"hosts/gpu.json"}
        assert plan(folder) == set()
    monkeypatch.setattr(fingerprint, "all_accelerators", lambda: {"cuda": "it fell off the bus"})
    assert plan(folder) == {"hosts/gpu.json"}
    missing = read_plan(folder / "hosts/gpu.json", GpuTarget).missing
    assert missing == "cuda: it fell off the bus"


def test_a_thousand_experiments_are_planned_in_seconds(tmp_path: Path, params_file: Path) -> None:
    lines = [
        f"  {width}-wide: {{dataset: digits, model: {{name: mlp, hidden: [{width}]}}}}\n"
        for width in range(1, 1001)
    ]
    params_file.write_text(PARAMS + "".join(lines), encoding="utf-8")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, str(ROOT / "stages/plan.py"), "--out", "plan"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert len(list((tmp_path / "plan/experiments").glob("*.json"))) == 1003
    assert (tmp_path / "reference").is_dir()  # which `compare` depends on
    # CPU time, since wall time depends on other programs: about one second on a quiet machine
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 10


@pytest.fixture
def lab() -> Machine:
    """Like this machine, but for its cores."""
    here = Machine.here()
    cpu = replace(here.cpu, usable_cores=96, cgroup_cores_limit=None)
    return here.model_copy(update={"cpu": cpu, "software": replace(here.software, variables={})})


def test_a_device_is_planned_by_the_facts_of_the_machine_that_it_names(
    tmp_path: Path, params_file: Path, lab: Machine
) -> None:
    (tmp_path / "lab.json").write_text(lab.model_dump_json(), encoding="utf-8")
    params_file.write_text(WITH_MACHINE % "lab", encoding="utf-8")
    params, folder = read_params(params_file), tmp_path / "plan"
    write_plan(params, folder, ROOT / "stages", read_machines(params.devices, tmp_path))
    planned = read_plan(folder / "hosts/cpu.json", CpuTarget)
    assert (planned.cpu, planned.threads) == (lab.cpu, 96)
    gpu_here = fingerprint.fingerprint(Devices())[1]
    assert read_plan(folder / "hosts/gpu.json", GpuTarget) == gpu_here

    params_file.write_text(WITH_MACHINE % "lap", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"^devices.cpu.machine is lap.* mean 'lab'\?.* lap` on"):
        read_machines(read_params(params_file).devices, tmp_path)


def test_a_stage_refuses_what_is_planned_for_another_machine_by_the_facts_that_differ(
    tmp_path: Path, lab: Machine, make_experiment: MakeExperiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned, _ = fingerprint.fingerprint(Devices(cpu=CpuDevice(machine="lab")), {"lab": lab})
    assert fingerprint.mismatches(planned, lab) == []
    experiment, host = tmp_path / "small.json", tmp_path / "cpu.json"
    experiment.write_text(make_experiment().model_dump_json(), encoding="utf-8")
    host.write_text(planned.model_dump_json(), encoding="utf-8")
    monkeypatch.setenv("DVC_STAGE", "train-cpu@small")
    differs = rf"cpu\.usable_cores: 96, not {Machine.here().cpu.usable_cores}\b"
    message = rf"small on cpu is planned for another machine .*{differs}.*`photofinish spread`"
    with pytest.raises(UserError, match=message):
        train("cpu", experiment, host, tmp_path / "data", None, tmp_path / "out")
    assert not (tmp_path / "out").exists()


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
    "train": ("runs/train.py", "runs/training.py"),
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
OWN = f"3.{sys.version_info.minor}"
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
    for python in (python for python in PYTHONS if OWN not in python):
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
def test_a_users_code_is_all_but_comments_and_spacing(source: str, equal: str, other: str) -> None:
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


def test_training_imports_no_measuring() -> None:
    sources = transitive_sources(ROOT / "stages/train.py")
    packages = {name.rpartition("/")[0].rpartition("/")[2] for name in sources}
    assert "training" in packages
    assert not packages & {"measure", "inside", "answer", "reporting"}


@pytest.mark.parametrize("if_missing", ["skip", "fail"])
def test_a_missing_gpu_is_recorded_or_fails(prepare_stage: PrepareStage, if_missing: str) -> None:
    stage = replace(prepare_stage(), device="gpu")
    missing: dict[str, Any] = {"kind": "auto", "count": 1, "missing": "none"}
    missing["if_missing"] = if_missing
    host = GpuTarget(**missing, accelerators=(), threads=None, cpu=None, software=None)
    write_bytes_atomically(stage.folder / "gpu.json", host.model_dump_json().encode())
    code = "import runpy, sys; del sys.argv[0]; sys.path.insert(0, sys.argv[0][:-11])\n"
    code += "runpy.run_path(sys.argv[0], run_name='__main__'); assert 'torch' not in sys.modules"
    if if_missing == "fail":
        ran = run_command([sys.executable, str(STAGE), *stage.arguments()], stage.folder)
        assert ran.stderr.startswith(
            "error: no accelerator: none (devices.gpu.if_missing in params"
        )
        assert ran.returncode == EXIT_FAILED
        return
    ran = run_command([sys.executable, "-c", code, *stage.measuring()], stage.folder, {})
    assert ran.returncode == 0, ran.stderr
    record = read_measured(stage.out / MEASURED_FOLDER / MEASURED)
    assert isinstance(record, NotMeasured)
    assert "none" in record.reason
