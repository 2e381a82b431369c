"""An installation without extras: `ask` of a script in another environment, and nothing more."""

from __future__ import annotations

import html
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path

import pytest
from conftest import ROOT
from packaging.requirements import Requirement

TRAINS = """
import torch
net = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(50):
    optimizer.zero_grad()
    net(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
"""
BEYOND = "torch torchvision dvc mlflow yaml sklearn scipy pandas matplotlib"


def distributions_of(requirements: Iterable[str]) -> set[str]:
    """Return the names of these distributions, and of all that they require without extras."""
    found: set[str] = set()
    queue = [Requirement(one) for one in requirements]
    while queue:
        one = queue.pop()
        if one.name not in found and (one.marker is None or one.marker.evaluate({"extra": ""})):
            found.add(one.name)
            queue += map(Requirement, distribution(one.name).requires or [])
    return found


def environment(folder: Path) -> Path:
    """Make an environment without packages, and return the folder for them."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    return packages


@pytest.fixture(scope="module")
def light(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Environment with photofinish and the packages that it requires without extras."""
    folder = tmp_path_factory.mktemp("light")
    packages = environment(folder)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert len(project["dependencies"]) <= 10
    for name in distributions_of(project["dependencies"]):
        for top in {file.parts[0] for file in distribution(name).files or ()} - {".."}:
            if not (packages / top).exists():
                (packages / top).symlink_to(distribution(name).locate_file(top))
    (packages / "photofinish.pth").write_text(str(ROOT / "src"), encoding="utf-8")
    return folder / "bin/python"


def run(python: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    own = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        [python, *arguments], env=own, capture_output=True, text=True, check=False
    )


def imports(python: Path, name: str) -> bool:
    return run(python, "-c", f"import {name}").returncode == 0


def test_a_script_in_another_environment_is_answered_without_the_pipelines_packages(
    light: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    others = environment(tmp_path / "theirs")
    (others / "all.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    theirs = tmp_path / "theirs/bin/python"
    Path("train.py").write_text(TRAINS, encoding="utf-8")
    assert imports(light, "photofinish")
    assert not [name for name in BEYOND.split() if imports(light, name)]
    assert not imports(theirs, "photofinish")
    options = ["--steps", "500", "--html", "page.html"]
    asked = run(light, "-m", "photofinish", "ask", *options, str(theirs), "train.py")
    assert asked.returncode == 0, asked.stderr
    page = Path("page.html").read_text(encoding="utf-8")
    assert asked.stdout.splitlines()[2] in html.unescape(page)
    assert "<svg" not in page
    assert "500 steps (--steps):" in asked.stdout
    assert "Watched 50 steps." in asked.stdout


def test_what_needs_the_pipelines_packages_ends_with_their_name_and_writes_nothing(
    light: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    commands = ["init"]
    for _ in range(2):
        before = sorted(Path().rglob("*"))
        for command in commands:
            ended = run(light, "-m", "photofinish", *command.split())
            assert ended.returncode == 1
            (line,) = ended.stderr.splitlines()
            assert "pip install 'photofinish[" in line
        assert sorted(Path().rglob("*")) == before
        Path("stages").mkdir(exist_ok=True)
        shutil.copy(ROOT / "stages/plan.py", "stages")
        shutil.copy(ROOT / "params.yaml", "params.yaml")
        commands = ["run", "plan", "ask", "gate", "report", "rent T4", "ui", "spread", "worker"]
