"""`stages/train.py` with all it needs in a folder of its own, without dvc around it."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import warm_python
from conftest import keep_known_code
from training_process import STAGE, WITHOUT_MLFLOW, ForkedProcess, Start

from photofinish.config.experiment import Experiment, step_settings
from photofinish.files import write_bytes_atomically
from photofinish.machine.fingerprint import CpuTarget
from photofinish.results.measured import MEASURED_FOLDER


def clean_environment() -> dict[str, str]:
    """Return the environment without variables of MLflow and DVC."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MLFLOW_", "DVC_"))
    }


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below, byte for byte."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@dataclass(frozen=True)
class TrainingStage:
    folder: Path
    data: Path
    out: Path
    device: str = "cpu"

    @classmethod
    def prepare(
        cls, folder: Path, experiment: Experiment, host: CpuTarget, data: Path
    ) -> TrainingStage:
        folder.mkdir(parents=True, exist_ok=True)
        steps = step_settings(experiment).model_dump_json()
        write_bytes_atomically(folder / "small.json", experiment.model_dump_json().encode())
        write_bytes_atomically(folder / "steps/small.json", steps.encode())
        write_bytes_atomically(folder / "cpu.json", host.model_dump_json().encode())
        keep_known_code(folder)
        return cls(folder, data, folder / "results" / "small" / "cpu")

    def learned(self) -> dict[str, bytes]:
        return contents(self.out / "model")

    def start(self, *python: str, **environment: str) -> subprocess.Popen[str]:
        """Start the stage in the project's folder, as dvc does, but with a warm Python.

        `python` replaces the script. Code (`-c`) starts in a cold Python.
        """
        return subprocess.Popen(
            [warm_python.executable(), *(python or (str(STAGE),)), *self.arguments()],
            cwd=self.folder,
            env=clean_environment() | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def fork(self, start: Start = WITHOUT_MLFLOW, **environment: str) -> ForkedProcess:
        """Run the script in a process forked from one with torch imported."""
        return ForkedProcess(
            self.folder, self.arguments(), clean_environment() | environment, start
        )

    def measuring(self, seconds: float = 0.1) -> list[str]:
        """Return the script of `measure` and its arguments."""
        files = {"steps": "steps/small.json", "job": "small.json", "seconds": str(seconds)}
        script = str(STAGE.with_name("measure.py"))
        return [script, *self.arguments(self.out / MEASURED_FOLDER, **files)]

    def arguments(self, out: Path | None = None, **files: str) -> list[str]:
        """Return the arguments of a stage, by default of training."""
        values = files or {"experiment": "small.json"}
        values |= {"host": f"{self.device}.json", "data": str(self.data)}
        values |= {"device": self.device, "out": str(out or self.out)}
        return [text for name, value in values.items() for text in (f"--{name}", value)]


def read_until(process: subprocess.Popen[str] | ForkedProcess, wanted: str) -> str:
    """Read its output up to the first line that holds `wanted`."""
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if wanted in line:
            return seen
    raise AssertionError(f"it ended without saying {wanted!r}:\n{seen}")


def runs(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def wait_for(condition: Callable[[], object]) -> float:
    """Poll until it holds, as long as pytest's timeout lets it; how many seconds that took."""
    started_seconds = time.monotonic()
    while not condition():
        time.sleep(0.02)
    return time.monotonic() - started_seconds
