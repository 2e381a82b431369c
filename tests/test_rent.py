"""`photofinish rent`: a task for SkyPilot with our time and cost, and the SSH commands."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import warm_python
import yaml
from conftest import run_command

from photofinish.commands.cli import main
from photofinish.commands.rent import rent
from photofinish.errors import UserError

EXPERIMENT = {
    "dataset": "digits", "model": "linear", "epochs": 1, "batch_size": 8, "seed": 0,
    "optimizer": {"name": "sgd", "lr": 0.1}, "schedule": "constant", "input": "resident",
    "precision": "fp32",
}  # fmt: skip
PRICE = {"amount": 3.0, "currency": "USD", "where": "some cloud", "as_of": "2026-07-20"}
OFFER = {
    "accelerator": "T4", "full_name": "Tesla T4", "fits": "yes", "needed_bytes": 1000,
    "epoch_seconds": 60.0, "job_seconds": {"value": 600.0}, "cost": 0.5,
}  # fmt: skip


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "stages").mkdir()
    (tmp_path / "stages/plan.py").touch()
    data = {"digits": {"source": "digits", "validation": 0.1, "test": 0.1}}
    params = {"datasets": data, "experiments": {"mine": {**EXPERIMENT, "repeats": 2, "seeds": 2}}}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_offers(project: Path, where: str = "some cloud", **changes: Any) -> None:
    empty = dict.fromkeys(("reason", "cpu_seconds", "gpu", "gpu_seconds", "speedup"))
    mine = {
        **empty, "saved_seconds": None, "answer": "No", "about": "renting",
        "lines": ["No, don't rent.", "Next: stay."], "model": "",
        "evidence": "estimated",
        "action": {"kind": "stay here", "text": "Stay here.", "accelerator": None},
        **{key: [] for key in ("causes", "suggestions", "speedups", "seeds")},
        "candidates": [OFFER | {"hour_price": PRICE | {"where": where}} | changes],
    }  # fmt: skip
    answers = {"summary": "", "answers": {"mine": mine}}
    answers |= {key: [] for key in ("reasons", "legend", "overview")}
    (project / "report").mkdir(exist_ok=True)
    (project / "report/answers.json").write_text(json.dumps(answers), encoding="utf-8")


def test_the_task_names_the_gpu_with_the_time_and_cost_of_all_its_trainings(project: Path) -> None:
    with pytest.raises(UserError, match="photofinish run"):
        rent("T4")  # without a comparison
    (project / "requirements.txt").touch()
    write_offers(project)
    text, commands = rent("T4")
    task = yaml.safe_load(text)
    assert task["resources"]["accelerators"] == {"T4": 1}
    assert task["setup"].rstrip().endswith("--requirement requirements.txt")
    for command in ("photofinish run measure-gpu train-gpu", "photofinish reference"):
        assert command in task["run"]
        assert command in commands
    comment = text.partition("name:")[0].replace("\n# ", " ")
    assert "Estimated: 30 min of training, 1.50 USD at 3.00 USD an hour (some cloud" in comment
    assert "advises against renting for mine." in comment
    write_offers(project, job_seconds=None, cost=None)
    assert "Time and cost on a T4 are not known" in rent("T4")[0].replace("\n# ", " ")
    (project / "report/answers.json").write_text('{"summary": ""}')
    with pytest.raises(UserError, match="photofinish run"):
        rent("T4")  # with the answers of an older photofinish


def test_code_above_the_pipelines_folder_is_not_left_behind(project: Path) -> None:
    params = yaml.safe_load(Path("params.yaml").read_text(encoding="utf-8"))
    (project.parent / "net.py").write_text("class Net: ...", encoding="utf-8")
    for outside in ({"model": {"name": "../net.py:Net"}}, {"deps": ["../net.py"]}):
        experiments = {"mine": params["experiments"]["mine"] | outside}
        text = yaml.safe_dump(params | {"experiments": experiments})
        Path("params.yaml").write_text(text, encoding="utf-8")
        with pytest.raises(UserError, match="above this folder, which wouldn't be copied: move"):
            rent("T4")


FROM_GIT = {"url": "https://host/it", "vcs_info": {"vcs": "git", "commit_id": "abc"}}
FROM_FOLDER = {"url": "file:///my%20folder:%20%231", "dir_info": {}}


@pytest.mark.parametrize(
    ("origin", "installed", "copied"),
    [
        (None, "photofinish[pipeline]==9.0", []),
        (FROM_GIT, "photofinish[pipeline] @ git+https://host/it@abc", []),
        (FROM_FOLDER, "$HOME/photofinish-source[pipeline]", ["/my folder: #1/"]),
    ],
)
def test_what_pip_installed_here_is_installed_there(
    project: Path, monkeypatch: pytest.MonkeyPatch, origin: Any, installed: str, copied: list[str]
) -> None:
    package = project / "packages/photofinish-9.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Name: photofinish\nVersion: 9.0\n", encoding="utf-8")
    if origin:
        (package / "direct_url.json").write_text(json.dumps(origin), encoding="utf-8")
    monkeypatch.syspath_prepend(package.parent)
    write_offers(project)
    text, commands = rent("T4")
    task = yaml.safe_load(text)
    assert f'"{installed}"' in task["setup"]
    assert f'"{installed}"' in commands
    assert [*task.get("file_mounts", {}).values()] == copied
    lines = [shlex.split(line) for line in commands.splitlines() if "--filter" in line]
    assert [line[3] for line in lines] == ["./", *copied]


@pytest.mark.parametrize(("gpu", "reason"), [("t4", "did you mean 'T4'"), ("T4", "memory")])
def test_a_gpu_that_is_not_known_or_too_small_is_refused(
    project: Path, gpu: str, reason: str
) -> None:
    write_offers(project, fits="no")
    with pytest.raises(UserError, match=reason):
        rent(gpu)


TRAIN = """
import os, sys
from network import net, torch
optimizer = torch.optim.SGD(net.parameters(), 0.1)
print(sys.argv[1:], file=open("runs", "a"))
for step in range(int(sys.argv[2])):
    net(torch.randn(64, 512)).mean().backward()
    optimizer.step()
    if "PHOTOFINISH_RECORDS" not in os.environ:
        break
"""
NETWORK = "import torch\nnet = torch.nn.Linear(512, 4096)"
UV = """#!/bin/bash -e
mkdir -p ~/photofinish-env/bin
cd ~/photofinish-env/bin
echo 'PATH=~/photofinish-env/bin:$PATH' > activate
for program in python photofinish pip; do echo '#!/bin/bash' > $program; done
echo 'exec {python} "$@"' >> python
echo 'shift; exec {python} -m photofinish ask --seconds 2 "$@"' >> photofinish
echo 'echo "$@" > ~/installed' >> pip
chmod +x *
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of a script and a module, and no pipeline."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "train.py").write_text(TRAIN, encoding="utf-8")
    (folder / "network.py").write_text(NETWORK, encoding="utf-8")
    return folder


@pytest.mark.parametrize(("steps", "trains"), [("1000000", True), ("30", False)])
def test_the_task_of_a_script_asks_there_and_trains_unless_the_answer_is_no(
    script: Path, steps: str, trains: bool
) -> None:
    text, commands = rent("T4", [sys.executable, "train.py", "--steps", steps, "a b"])
    task = yaml.safe_load(text)
    assert (task["workdir"], task["resources"]["accelerators"]) == (".", {"T4": 1})
    home = script.parent / "home"
    there = home / "sky_workdir"
    shutil.copytree(script, there)
    (home / "uv").write_text(UV.format(python=warm_python.executable()), encoding="utf-8")
    (home / "uv").chmod(0o755)
    environment = {"HOME": str(home), "PATH": f"{home}:{os.environ['PATH']}"}
    environment = os.environ | environment | {"CUDA_VISIBLE_DEVICES": ""}

    def ended(part: str) -> subprocess.CompletedProcess[str]:
        return run_command(["bash", "-c", task[part]], there, environment)

    assert ended("setup").returncode == 0
    assert re.search(r" torch==[\d.]+$", (home / "installed").read_text(encoding="utf-8"))
    asked = ended("run")
    assert (asked.returncode == 0) is trains, asked.stderr
    assert ("Not trained: No" in asked.stderr) is not trains
    rents = rf"Next: `photofinish rent \w+ -- python train.py --steps {steps} 'a b'`"
    # Beside other programs, the answer of so short a sample may be to ask again.
    is_open = trains and "when the machine is idle" in asked.stdout
    assert is_open or bool(re.search(rents, asked.stdout)) is trains
    ran = (there / "runs").read_text(encoding="utf-8").splitlines()
    assert ran == [str(["--steps", steps, "a b"])] * (1 + trains)
    answers = json.loads((there / "photofinish-answer.json").read_bytes())
    assert answers[-1]["records"]["cpu"]["script"]["steps"] > 1
    action = f"Next: {answers[-1]['answer']['action']['text']}"
    assert is_open or bool(re.search(rents, action)) is trains
    assert "sky_workdir/ rented-T4/" in commands


@pytest.mark.parametrize(
    ("files", "installed"),
    [
        ({"requirements.txt": "torch"}, '" --requirement requirements.txt'),
        ({"pyproject.toml": "[project]"}, '" .'),
        ({"pyproject.toml": "[tool.ruff]", "network.py": "import yaml"}, '" pyyaml=='),
        ({"pyproject.toml": "project.name = 'photofinish'"}, " torch=="),
    ],
)
def test_a_script_is_installed_by_its_folder_or_by_what_it_imports(
    script: Path,
    files: dict[str, str],
    installed: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, text in files.items():
        (script / name).write_text(text, encoding="utf-8")
    words = ["rent", "T4", "--", sys.executable, "train.py", "--device", "{device}"]
    monkeypatch.setattr(sys, "argv", ["photofinish", *words])
    main()
    shown = capsys.readouterr()
    task = yaml.safe_load(shown.out)
    assert installed in task["setup"].lower()
    assert installed in shown.err.lower()
    assert shown.err.startswith("Nothing is started or paid for")
    *_, asks, _, trains = task["run"].splitlines()
    assert asks.endswith("-- python train.py --device '{device}'")
    assert shlex.split(trains) == ["python", "train.py", "--device", "cuda"]


@pytest.mark.parametrize("command", ["python -m train", "python missing.py"])
@pytest.mark.usefixtures("script")
def test_a_command_whose_packages_are_not_known_wants_requirements(command: str) -> None:
    with pytest.raises(UserError, match=r"requirements\.txt"):
        rent("T4", command.split())


def test_no_machine_is_rented_for_a_python_without_torch(script: Path) -> None:
    bare = script / "python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n', encoding="utf-8")
    bare.chmod(0o755)
    with pytest.raises(UserError, match=rf"couldn't find in {bare} what .* Name the Python"):
        rent("T4", [str(bare), "train.py"])
