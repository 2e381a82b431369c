"""`plan` writes a file for each experiment, data set, device and stage, if it changed."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import ROOT, MakeExperiment, run_stage

from photofinish.config.base import read_plan
from photofinish.config.compare import ComparePlan
from photofinish.config.datasets import DatasetPlan
from photofinish.config.devices import CpuDevice, Devices
from photofinish.config.experiment import ExperimentPlan
from photofinish.config.loader import read_params
from photofinish.errors import ConfigError, UserError
from photofinish.machine import fingerprint
from photofinish.machine.accelerators import AcceleratorFacts
from photofinish.machine.fingerprint import CpuTarget, GpuTarget, Machine, read_machines
from photofinish.planning.plan import write_plan
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
  long: {dataset: digits, model: linear, epochs: 50}
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
        ("epochs: 10", "epochs: 10  # the usual", set()),
        ("validation: 50", "validation: 60", {"datasets/few-digits.json"}),
        ("datasets:", "devices: {gpu: {if_missing: fail}}\ndatasets:", {"hosts/gpu.json"}),
        ("datasets:", "compare: {target_accuracy: 0.9}\ndatasets:", {"compare.json"}),
    ],
)
def test_a_change_writes_only_the_files_it_affects(
    folder: Path, old: str, new: str, written: set[str]
) -> None:
    assert old in PARAMS
    assert plan(folder, PARAMS.replace(old, new, 1)) == written


def test_a_file_of_known_bytes_is_not_parsed_again(tmp_path: Path, params_file: Path) -> None:
    def planned(stage: str) -> dict[str, str]:
        assert run_stage("plan", cwd=tmp_path).returncode == 0
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


def test_another_gpu_changes_the_gpu_and_a_missing_one_is_recorded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_device_has_the_facts_of_the_machine_that_it_names(
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
