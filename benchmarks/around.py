"""Time what surrounds a training: whole stages, a pipeline from nothing, a no-op.

`python -m benchmarks.around` prints seconds of wall time, taken in temporary clones of the last
commit. `plan` runs every time, so DVC rewrites dvc.lock every time, and both must stay quick.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from benchmarks import machine
from benchmarks.timing import spread

ROUNDS = 7
EXPERIMENTS = 15
ROOT = Path(__file__).parent.parent


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        default = _clone(folder / "default")
        _report(
            "dvc repro of the three default experiments from nothing",
            [_seconds(default, "dvc", "repro")],
        )
        _stages(_clone(folder / "stages"))
        _no_ops(folder, default)
    print(", ".join(f"{name} {value}" for name, value in machine.describe(machine.cores()).items()))


def _no_ops(folder: Path, default: Path) -> None:
    many = _clone(folder / "many")
    params = _params(many)
    linear = {"dataset": "digits", "model": "linear", "epochs": 1}
    params["experiments"] = {
        f"linear-{number:02d}": linear | {"seed": number} for number in range(EXPERIMENTS)
    }
    _write(many / "params.yaml", params)
    _seconds(many, "dvc", "repro")
    no_op = ("dvc", "repro", "--quiet")
    for project in (default, many):
        _seconds(project, *no_op)
    rounds = [[_seconds(project, *no_op) for project in (default, many)] for _ in range(ROUNDS)]
    defaults, others = zip(*rounds, strict=True)
    _report("no-op of the three default experiments", list(defaults))
    _report(f"no-op of {EXPERIMENTS} experiments", list(others))


def _stages(project: Path) -> None:
    """Time a training of about a second, as DVC starts it."""
    params = _params(project)
    params["experiments"] = {"second": params["experiments"]["digits-mlp"] | {"epochs": 100}}
    _write(project / "params.yaml", params)
    _seconds(project, "dvc", "repro", "train-cpu@second")
    files = {
        "experiment": "data/plan/experiments/second.json",
        "host": "data/plan/hosts/cpu.json",
        "data": "data/splits/digits",
        "weights": "data/weights/second",
        "out": "results/second/cpu",
    }
    command = [sys.executable, "stages/train.py", "--device=cpu"]
    command += [f"--{name}={path}" for name, path in files.items()]
    seconds = []
    for _ in range(ROUNDS):
        # Else it would restore the last checkpoint and have no epoch left.
        shutil.rmtree(project / ".photofinish" / "checkpoints", ignore_errors=True)
        seconds.append(_seconds(project, *command))
    _report("a training stage of about one second, start to exit", seconds)


def _clone(folder: Path) -> Path:
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    return folder


def _params(project: Path) -> dict[str, Any]:
    params: dict[str, Any] = yaml.safe_load((project / "params.yaml").read_text(encoding="utf-8"))
    return params


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(yaml.safe_dump(value), encoding="utf-8")


def _seconds(project: Path, *command: str) -> float:
    environment = os.environ | {
        "PYTHONPATH": str(project / "src"),
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    environment.pop(
        "PYTHONDONTWRITEBYTECODE", None
    )  # else each start compiles the clone's modules again
    started_seconds = time.perf_counter()
    ran = subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - started_seconds
    if ran.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{ran.stdout}{ran.stderr}")
    return seconds


def _report(what: str, values: list[float]) -> None:
    figures = spread(values)
    text = f"{figures.lowest:.2f} to {figures.highest:.2f}, {len(values)} times"
    print(f"{what}: {figures.median:.2f} ({text})", flush=True)


if __name__ == "__main__":
    main()
