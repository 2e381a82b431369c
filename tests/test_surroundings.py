"""What the plan follows from besides params.yaml is noticed where it changes, and nothing else is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from image_files import write_picture

from photofinish import surroundings as surroundings_module
from photofinish.errors import UserError
from photofinish.files import write_json_atomically
from photofinish.machine import cpu as cpus
from photofinish.machine import memory as main_memory
from photofinish.machine.accelerators import AcceleratorFacts
from photofinish.machine.software import GPU_VARIABLES
from photofinish.params.reader import read_params
from photofinish.plan import write_plan
from photofinish.surroundings import accelerators_seen, surroundings

PARAMS = """\
defaults: {epochs: 1, batch_size: 2, optimizer: {name: sgd, lr: 0.1}}
datasets:
  birds: SOURCE
experiments:
  first: {dataset: birds, model: linear}
"""
GPU = AcceleratorFacts(kind="cuda", name="Some GPU", memory_bytes=1 << 34, driver="580.1")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of one script, no reference and two photos, whose params.yaml names digits."""
    monkeypatch.chdir(tmp_path)
    for name in ("DVC_ROOT", "PHOTOFINISH_MIRROR", *GPU_VARIABLES):
        monkeypatch.delenv(name, raising=False)
    name_source(tmp_path, "{source: digits, validation: 1, test: 1}")
    (tmp_path / "stages").mkdir()
    (tmp_path / "stages" / "train.py").write_text("import photofinish\n", encoding="utf-8")
    (tmp_path / "reference").mkdir()
    for name in ("owl/a.png", "cat/a.png"):
        write_picture(tmp_path / "photos" / name)
    return tmp_path


def name_source(project: Path, source: str) -> None:
    (project / "params.yaml").write_text(PARAMS.replace("SOURCE", source), encoding="utf-8")


def seen(project: Path) -> dict[str, Any]:
    return surroundings(project / "params.yaml", project / "stages", project / "reference")


def planned(project: Path) -> dict[str, bytes]:
    """The files of the plan, made as the stage makes it: with the accelerators that were seen."""
    file, folder = project / "surroundings.json", project / "plan"
    write_json_atomically(file, seen(project))
    params = read_params(project / "params.yaml")
    write_plan(params, folder, project / "splits", project / "stages", accelerators_seen(file))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.json")}


def noticed(project: Path, change: Callable[[], object]) -> set[str]:
    before = seen(project)
    change()
    after = seen(project)
    return {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}


def test_it_is_the_same_as_long_as_nothing_changes(project: Path) -> None:
    assert noticed(project, lambda: os.utime(project / "stages" / "train.py", ns=(1, 1))) == set()


@pytest.mark.parametrize("name", [*GPU_VARIABLES, "PHOTOFINISH_MIRROR"])
def test_a_variable_that_changes_the_plan_is_noticed(project: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    name_source(project, "{source: MNIST, validation: 100}")  # which a mirror may have
    monkeypatch.setattr(surroundings_module, "all_accelerators", lambda: {"cuda": (GPU,), "mps": "none", "xpu": "none"})
    monkeypatch.delenv(name, raising=False)
    before = planned(project)
    assert noticed(project, lambda: monkeypatch.setenv(name, "1"))
    assert planned(project) != before


def test_another_count_of_cores_changes_the_plan_and_is_noticed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = planned(project)
    monkeypatch.setattr(cpus, "read_or_empty", lambda _path: "")
    monkeypatch.setattr(cpus.os, "sched_getaffinity", lambda _process: set(range(97)))
    assert json.loads(planned(project)["hosts/cpu.json"])["threads"] == 97
    assert planned(project) != before
    assert seen(project)["cpu"]["usable_cores"] == 97


def test_another_gpu_and_another_memory_are_noticed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def another_machine() -> None:
        monkeypatch.setattr(surroundings_module, "all_accelerators", lambda: {"cuda": (GPU,), "mps": "none", "xpu": ""})
        monkeypatch.setattr(surroundings_module, "total_memory_bytes", lambda: 1 << 30)

    assert noticed(project, another_machine) == {"accelerators", "main_memory_bytes"}


def test_memory_that_other_programs_take_is_no_news(
    project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def machine_with(free_kilobytes: int) -> None:
        (tmp_path / "meminfo").write_text(f"MemTotal: 4096 kB\nMemAvailable: {free_kilobytes} kB\n", encoding="utf-8")

    monkeypatch.setattr(main_memory, "_MEMORY_FACTS", tmp_path / "meminfo")
    machine_with(2048)
    assert seen(project)["main_memory_bytes"] == 4096 * 1024
    assert noticed(project, lambda: machine_with(1024)) == set()


def test_a_changed_source_a_changed_script_and_a_new_reference_are_noticed(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change() -> None:
        monkeypatch.setattr(surroundings_module, "source_sha256", lambda: "another")
        (project / "stages" / "train.py").write_text("import torch\n", encoding="utf-8")
        (project / "reference" / "some-gpu").mkdir()

    assert noticed(project, change) == {"package", "scripts", "references"}


@pytest.mark.parametrize(
    "source",
    [
        "{source: folder, path: photos, validation: 1, test: 1}",
        "{path: photos, validation: 1, test: 1, 'source': 'folder'}",
        "&b {source: &s folder, path: photos, validation: 1, test: 1}\n  more: {<<: *b, source: *s}",
    ],
)
def test_an_image_of_the_users_that_changes_is_noticed_however_params_yaml_names_it(project: Path, source: str) -> None:
    name_source(project, source)
    assert seen(project)["local_files"]["birds"]
    assert noticed(project, lambda: write_picture(project / "photos" / "owl" / "b.png")) == {"local_files"}


def test_images_that_go_away_are_noticed_and_left_for_plan_to_explain(project: Path) -> None:
    name_source(project, "{source: folder, path: photos, validation: 1, test: 1}")
    assert noticed(project, lambda: (project / "photos").rename(project / "elsewhere")) == {"local_files"}
    assert seen(project)["local_files"] is None


def test_a_params_yaml_that_is_not_there_is_left_for_plan_to_explain(project: Path) -> None:
    assert noticed(project, (project / "params.yaml").unlink) == {"local_files"}


def test_the_params_yaml_that_comes_with_the_project_names_no_local_files() -> None:
    """Nor speaks of them in a comment: to tell that apart, the whole schema is imported, at every `dvc repro`."""
    assert not surroundings_module._MAY_NAME_LOCAL_FILES.search((ROOT / "params.yaml").read_bytes())


def test_the_plan_takes_its_accelerators_from_there_whatever_a_driver_answers_later(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(surroundings_module, "all_accelerators", lambda: {"cuda": (GPU,), "mps": "none", "xpu": "none"})
    assert json.loads(planned(project)["hosts/gpu.json"])["accelerators"] == [asdict(GPU)]


@pytest.mark.parametrize("damaged", [None, "", "[]", "{}", '{"accelerators": {"cuda": [{"name": "no more"}]}}'])
def test_a_damaged_file_is_named_to_the_user(project: Path, damaged: str | None) -> None:
    file = project / "surroundings.json"
    if damaged is not None:
        file.write_text(damaged, encoding="utf-8")
    with pytest.raises(UserError, match=r"surroundings.json can't be read: run `dvc repro`"):
        accelerators_seen(file)


@pytest.mark.parametrize("module", ["pydantic", "importlib.metadata", "psutil"])
def test_the_stage_writes_it_without_what_takes_long_to_import(project: Path, module: str) -> None:
    places = ["--params", "params.yaml", "--stages", "stages", "--references", "reference", "--out", "out.json"]
    script = ROOT / "stages" / "surroundings.py"
    code = f"import sys; sys.modules['{module}'] = None; sys.argv = sys.argv[1:]; import runpy; "
    code += "runpy.run_path(sys.argv[0], run_name='__main__')"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code, str(script), *places], env=environment, check=True)
    assert json.loads((project / "out.json").read_text(encoding="utf-8")) == json.loads(json.dumps(seen(project)))
