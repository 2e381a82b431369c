"""What a worker starts for a job: `python -m photofinish.fleet.train`, in its clone, with the job on standard input.

When that is closed, it ends with all that it has started.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Any

import yaml

from photofinish.errors import UserError, run_stage
from photofinish.files import finished_folder, state_folder, write_summed, write_text_atomically
from photofinish.fleet.jobs import PLAN, Job, end_with_input
from photofinish.models.pretrained import RECORD

_LOCK = Path("dvc.lock")
_LAST_LINES = 5
_NOT_PUSHED = 9
_REPRO_AND_PUSH = f"""
import sys
from dvc.cli import main  # which `dvc` runs: started once for both, it takes a third less of each training's cost
stage = sys.argv[1]
sys.exit(main(["repro", "--single-item", stage]) or (main(["push", "--run-cache", stage]) and {_NOT_PUSHED}))
"""


def train(job: Job) -> None:
    """Train in the present folder, a clone at the job's commit, with data from DVC's remote, and push the result."""
    for name, text in job.plan.items():
        write_summed(PLAN / name, text.encode())
    _LOCK.write_text(job.lock, encoding="utf-8")
    data = [f"data/splits/{job.dataset}"]
    weights = Path("data/weights") / job.experiment
    if job.weights is None:
        data.append(str(weights))
    else:
        write_text_atomically(weights / RECORD, job.weights)
    pulled = state_folder() / "pulled" / job.dataset
    if not all(map(os.path.isdir, data)) or not pulled.is_file() or pulled.read_text(encoding="utf-8") != job.lock:
        _run([sys.executable, "-m", "dvc", "pull", "--force", *data], "dvc pull")
        pulled.parent.mkdir(parents=True, exist_ok=True)
        pulled.write_text(job.lock, encoding="utf-8")
    if job.part and job.part.node:
        _run(shlex.split(_command_of(job)), "the training")
        return
    _run([sys.executable, "-c", _REPRO_AND_PUSH, job.stage], f"dvc repro and push of {job.stage}")
    shutil.rmtree(finished_folder(), ignore_errors=True)  # DVC has it


def _command_of(job: Job) -> str:
    """The stage's own, as DVC runs it for the first of several machines, which has the result."""
    stages: dict[str, Any] = yaml.load(Path("dvc.yaml").read_bytes(), yaml.CSafeLoader)["stages"]
    command: str = stages[f"train-{job.device}"]["do"]["cmd"]
    return command.replace("${key}", job.experiment).replace("${item.dataset}", job.dataset)


def _run(command: list[str], name: str) -> None:
    """Its output is shown as it comes; where it fails, the words of the stage are told, or else its own last ones."""
    told, last = [], deque[str](maxlen=_LAST_LINES)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            last.append(line.strip())
            if line.startswith("error: "):
                told.append(line.strip().removeprefix("error: "))
    if process.returncode == _NOT_PUSHED:
        told = [f"{' '.join(last)}. It is trained, and kept on its machine until DVC's remote has room and takes it"]
    if process.returncode:
        raise UserError("; ".join(told) or f"{name}: {' '.join(filter(None, last))}")


def main() -> None:
    """Train what standard input asks for."""
    job = Job.model_validate_json(sys.stdin.buffer.readline())
    end_with_input(and_group=True)
    train(job)


if __name__ == "__main__":
    run_stage(main)
