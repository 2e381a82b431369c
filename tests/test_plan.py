"""The plan has one file an experiment, a data set and a device, and only what a change touches is written again."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import ROOT, run_stage
from image_files import write_picture

from photofinish.config.base import read_plan
from photofinish.config.compare import ComparePlan
from photofinish.config.datasets import DatasetPlan
from photofinish.config.experiment import ExperimentPlan
from photofinish.config.loader import read_params
from photofinish.errors import ConfigError, UserError
from photofinish.machine import fingerprint, host
from photofinish.machine.accelerators import AcceleratorFacts
from photofinish.machine.fingerprint import CpuTarget, GpuTarget
from photofinish.machine.host import CPU_VARIABLES, GPU_VARIABLES
from photofinish.plan import write_plan

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
STAGE_CODE = {f"code/{script.stem}.json" for script in (ROOT / "stages").glob("[!_]*.py")}
LONG_AGO = 1_000_000_000


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def written_since(folder: Path) -> set[str]:
    return {name for name in files_in(folder) if (folder / name).stat().st_mtime != LONG_AGO}


def planned_anew(folder: Path, text: str = PARAMS) -> set[str]:
    """Return the files that are written when the plan is made again, as at every `dvc repro`."""
    params_file = folder.parent / "params.yaml"
    params_file.write_text(text, encoding="utf-8")
    write_plan(read_params(params_file), folder, ROOT / "stages")
    written = written_since(folder)
    for name in written:
        os.utime(folder / name, (LONG_AGO, LONG_AGO))
    return written


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The plan of PARAMS, all of it written long ago."""
    planned_anew(tmp_path / "plan")
    return tmp_path / "plan"


@contextmanager
def little_time_of_the_processor() -> Iterator[None]:
    """Limit the CPU time of child processes. Wall time would depend on other programs."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    yield
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used_seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert used_seconds < 10  # one is enough on a quiet machine; quadratic time would take minutes


def test_the_plan_has_one_file_an_experiment_a_data_set_a_device_and_a_stage(folder: Path) -> None:
    assert files_in(folder) == {
        *("hosts/cpu.json", "hosts/gpu.json"),
        *("datasets/digits.json", "datasets/few-digits.json"),
        *("experiments/linear.json", "experiments/long.json", "experiments/adam.json"),
        *("metrics/linear.json", "metrics/long.json", "metrics/adam.json"),
        *("weights.json", "compare.json"),
        *STAGE_CODE,
    }


def test_what_was_planned_is_read_back_as_it_was(params_file: Path, folder: Path) -> None:
    params = read_params(params_file)
    adam = ExperimentPlan(**dict(params.experiments["adam"]))
    assert read_plan(folder / "experiments/adam.json", ExperimentPlan) == adam
    assert read_plan(folder / "datasets/few-digits.json", DatasetPlan).dataset == params.datasets["few-digits"]
    assert read_plan(folder / "hosts/cpu.json", CpuTarget).threads >= 1
    assert read_plan(folder / "hosts/gpu.json", GpuTarget).if_missing == "skip"
    order_in_params_yaml = ("linear", "long", "adam")
    assert read_plan(folder / "compare.json", ComparePlan).experiments == order_in_params_yaml


def test_the_old_key_mirror_is_refused_with_the_key_that_replaces_it(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"(?s)params\.yaml:1  mirror.*root"):
        planned_anew(folder, f"mirror: /data\n{PARAMS}")
    assert written_since(folder) == set()


@pytest.mark.parametrize(
    ("old", "new", "written"),
    [
        ("epochs: 50", "epochs: 50", set()),
        ("epochs: 50", "epochs: 60", {"experiments/long.json"}),
        ("epochs: 10", "epochs: 11", {"experiments/linear.json", "experiments/adam.json"}),
        ("lr: 0.1", "lr: 0.2", {"experiments/linear.json", "experiments/long.json"}),
        ("validation: 50", "validation: 60", {"datasets/few-digits.json"}),
        ("epochs: 10", "epochs: 10  # the usual", set()),
        ("  epochs: 10\n  batch_size: 128", "  batch_size: 128\n  epochs: 10", set()),
        ("datasets:", "devices: {cpu: {threads: 63}}\ndatasets:", {"hosts/cpu.json"}),
        ("datasets:", "devices: {gpu: {if_missing: fail}}\ndatasets:", {"hosts/gpu.json"}),
        ("datasets:", "compare: {prices: {gpu_hour: 2.0}, target_accuracy: 0.9}\ndatasets:", {"compare.json"}),
        ("datasets:", "compare: {prices: {gpu_hour: null}, references: all}\ndatasets:", set()),
    ],
)
def test_a_change_writes_only_the_files_it_touches(folder: Path, old: str, new: str, written: set[str]) -> None:
    assert old in PARAMS
    assert planned_anew(folder, PARAMS.replace(old, new, 1)) == written


def test_what_is_no_longer_asked_for_goes_and_the_rest_stays_untouched(folder: Path) -> None:
    before, less = files_in(folder), PARAMS[: PARAMS.index("  adam:")].replace("  few-digits", "  # few-digits")
    assert planned_anew(folder, less) == {"compare.json", "weights.json"}  # which name the experiments
    assert before - files_in(folder) == {"datasets/few-digits.json", "experiments/adam.json", "metrics/adam.json"}
    assert files_in(folder) < before


@pytest.mark.parametrize("text", ["{", "\N{OWL}", '{"epochs": 1}'])
def test_a_plan_that_cannot_be_read_is_named_and_the_next_plan_mends_it(folder: Path, text: str) -> None:
    damaged = folder / "experiments/long.json"
    damaged.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=f"{damaged} is not a plan that can be read"):
        read_plan(damaged, ExperimentPlan)
    assert planned_anew(folder) == {"experiments/long.json"}
    assert read_plan(damaged, ExperimentPlan).epochs == 50


def test_files_beside_the_plans_own_folders_are_left_alone(folder: Path) -> None:
    (folder / "experiments/left-over.json").touch()
    (folder / "notes.txt").touch()
    planned_anew(folder)
    assert "notes.txt" in files_in(folder)
    assert "experiments/left-over.json" not in files_in(folder)


# -- what DVC doesn't see by itself ---------------------------------------------------------------------


@pytest.mark.parametrize("name", GPU_VARIABLES)
def test_a_variable_that_changes_results_begins_the_devices_anew_that_heed_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    gpu = AcceleratorFacts(kind="cuda", name="Some GPU", memory_bytes=1 << 34, driver="580.1")
    monkeypatch.setattr(fingerprint, "all_accelerators", lambda: {"cuda": (gpu,), "mps": "none", "xpu": "none"})
    monkeypatch.delenv(name, raising=False)
    planned_anew(folder)
    assert planned_anew(folder) == set()
    monkeypatch.setenv(name, "1")
    assert planned_anew(folder) == {"hosts/gpu.json", *(["hosts/cpu.json"] if name in CPU_VARIABLES else [])}


def test_another_gpu_begins_the_gpu_anew_and_one_that_is_gone_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2):
        gpu = AcceleratorFacts(kind="cuda", name=f"GPU {number}", memory_bytes=1 << 34, driver="580.1")
        monkeypatch.setattr(fingerprint, "all_accelerators", lambda gpu=gpu: {"cuda": (gpu,)})
        assert planned_anew(folder) == {"hosts/gpu.json"}
        assert planned_anew(folder) == set()
    monkeypatch.setattr(fingerprint, "all_accelerators", lambda: {"cuda": "it fell off the bus"})
    assert planned_anew(folder) == {"hosts/gpu.json"}
    assert read_plan(folder / "hosts/gpu.json", GpuTarget).missing == "cuda: it fell off the bus"


def test_another_count_of_cores_begins_the_cpu_anew(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    read = host.read_or_empty
    monkeypatch.setattr(host, "read_or_empty", lambda path: "" if path.is_relative_to("/sys") else read(path))
    monkeypatch.setattr(host.os, "sched_getaffinity", lambda _process: set(range(97)))
    assert "hosts/cpu.json" in planned_anew(folder)
    assert read_plan(folder / "hosts/cpu.json", CpuTarget).threads == 97


def test_an_image_of_the_users_that_changes_begins_its_data_set_anew(folder: Path) -> None:
    photos = folder.parent / "photos"
    for name in ("owl/a.png", "cat/a.png"):
        write_picture(photos / name)
    mine = f"  mine: {{source: folder, path: {photos}, validation: 1, test: 1}}\n"
    params = PARAMS.replace("datasets:\n", "datasets:\n" + mine)
    assert planned_anew(folder, params) == {"datasets/mine.json"}
    assert planned_anew(folder, params) == set()
    write_picture(photos / "owl" / "b.png")
    assert planned_anew(folder, params) == {"datasets/mine.json"}


# -- the stage ------------------------------------------------------------------------------------------


def test_the_stage_writes_the_plan_of_this_projects_params(tmp_path: Path) -> None:
    ran = run_stage("plan", "--params", str(ROOT / "params.yaml"), "--out", "data/plan", cwd=tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    planned = {path.stem for path in (tmp_path / "data/plan/experiments").glob("*.json")}
    assert planned == read_params(ROOT / "params.yaml").experiments.keys()
    assert json.loads((tmp_path / "data/plan/hosts/cpu.json").read_text(encoding="utf-8"))["threads"] >= 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (PARAMS.replace("0.1,", "-1,").replace("epochs: 50", "epoch: 50"), "has 2 mistakes; nothing was started"),
        ("defaults: [", "params.yaml:2  this is not valid YAML"),
        (None, "params.yaml: there is no such file"),
    ],
)
def test_the_stage_refuses_a_bad_file_and_writes_nothing(
    folder: Path, params_file: Path, text: str | None, told: str
) -> None:
    params_file.unlink()
    if text is not None:
        params_file.write_text(text, encoding="utf-8")
    ran = run_stage("plan", "--params", "params.yaml", "--out", folder.name, cwd=folder.parent)
    assert ran.returncode == 2
    assert ran.stderr.startswith("error: params.yaml")
    assert told in ran.stderr
    assert "Traceback" not in ran.stderr + ran.stdout
    assert written_since(folder) == set()


def test_a_thousand_experiments_are_planned_in_little_time_of_the_processor(tmp_path: Path, params_file: Path) -> None:
    experiments = "".join(
        f"  {width}-wide: {{dataset: digits, model: {{name: mlp, hidden: [{width}]}}, optimizer: {{lr: 0.05}}}}\n"
        for width in range(1, 1001)
    )
    params_file.write_text(PARAMS + experiments, encoding="utf-8")
    with little_time_of_the_processor():
        ran = run_stage("plan", "--params", "params.yaml", "--out", "data/plan", cwd=tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert len(list((tmp_path / "data/plan/experiments").glob("*.json"))) == 1003
