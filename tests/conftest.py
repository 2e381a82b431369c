"""What many tests share: a small data set that can be learned, an experiment, a host, and a project of one's own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from photofinish.datasets.images import LabelledImages
from photofinish.datasets.packed import PackedSplit
from photofinish.datasets.split import split
from photofinish.hosts import CpuHost, cpu_facts, software_facts
from photofinish.params import DigitsDataset, Experiment

ROOT = Path(__file__).parent.parent

MakeExperiment = Callable[..., Experiment]


def learnable_images(count: int = 120, classes: int = 3, side: int = 8, seed: int = 0) -> LabelledImages:
    """Noise with one bright row, whose place is the class."""
    random = np.random.default_rng(seed)
    labels = np.arange(count, dtype=np.int64) % classes
    images = random.integers(0, 120, size=(count, 1, side, side), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[0, label] = 255
    return LabelledImages(images, labels, tuple(f"class {index}" for index in range(classes)))


@pytest.fixture(scope="session")
def packed_split(tmp_path_factory: pytest.TempPathFactory) -> PackedSplit:
    folder = tmp_path_factory.mktemp("split")
    dataset = DigitsDataset(source="digits", validation=0.2, test=0.2)
    split(dataset, learnable_images(), folder)
    return PackedSplit(folder)


@pytest.fixture
def make_experiment() -> MakeExperiment:
    """An experiment with every setting, any of them overridden: `make_experiment(epochs=2)`."""

    def make(**overrides: Any) -> Experiment:
        settings: dict[str, Any] = {
            "dataset": "small",
            "model": {"name": "mlp", "hidden": (8,)},
            "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9},
            "schedule": {"name": "constant"},
            "input": {"name": "resident"},
            "precision": "fp32",
            "epochs": 3,
            "batch_size": 16,
            "seed": 0,
        }
        return Experiment.model_validate({**settings, **overrides})

    return make


@pytest.fixture(scope="session")
def cpu_host() -> CpuHost:
    return CpuHost(threads=1, cpu=cpu_facts(), software=software_facts())


@dataclass(frozen=True)
class Project:
    """A clone of this project in a folder of its own, with its own DVC cache and MLflow store."""

    root: Path
    environment: dict[str, str]

    def run(self, *command: str, timeout: float = 240, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command in it, as a user with the environment activated; output is captured."""
        return subprocess.run(
            command,
            cwd=self.root,
            env=self.environment | environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def start(self, *command: str, **environment: str) -> subprocess.Popen[str]:
        """Start a command in it as a process group of its own, to be killed or interrupted."""
        return subprocess.Popen(
            command,
            cwd=self.root,
            env=self.environment | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def repro(self, *arguments: str, **environment: str) -> str:
        """`dvc repro`, which must succeed; what it printed."""
        ran = self.run("dvc", "repro", *arguments, **environment)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout + ran.stderr


@pytest.fixture
def make_project(tmp_path: Path) -> Callable[[str], Project]:
    """Clone this project's tracked and new files, as `git clone` of the next commit would."""

    def make(name: str = "project") -> Project:
        root = tmp_path / name
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        for file in filter(None, listed.stdout.split("\0")):
            if (ROOT / file).is_file() and file != "dvc.lock":
                (root / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / file, root / file)
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "DVC_"))}
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
        environment["PYTHONPATH"] = str(root / "src")
        project = Project(root, environment)
        for command in (
            ("git", "init", "--quiet"),
            ("git", "add", "--all"),
            ("git", "-c", "user.name=test", "-c", "user.email=test@example.com", "commit", "--quiet", "-m", "start"),
        ):
            assert project.run(*command).returncode == 0
        return project

    return make


@pytest.fixture
def project(make_project: Callable[[str], Project]) -> Project:
    return make_project("project")
