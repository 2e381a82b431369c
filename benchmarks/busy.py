"""Compare eight jobs on a quiet and a busy machine: `python -m benchmarks.busy`.

Each job runs quietly first, then beside busy loops, all the time or in the middle of it. No sure
answer may differ from the quiet run's, and an idle time that is known should be its time. `--loops`
and `--jobs` choose a part; results stay in `--folder`, and all of them are summed up.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from photofinish.answer.comparison import compare
from photofinish.answer.decision import Decision, decide
from photofinish.answer.times import time_by_load
from photofinish.results import records
from photofinish.results.job import Job, JobPair
from photofinish.results.measured import (
    MEASURED,
    MEASURED_FOLDER,
    Measured,
    TrainedRecords,
    read_measured,
    read_trained,
)
from photofinish.results.measured_jobs import job_of_script
from photofinish.results.training_jobs import job_of_training

ROOT = Path(__file__).parent.parent
BUSY_LOOP = [sys.executable, "-c", "while True: pass"]
NETWORKS = '''
from torch import nn

class Gru(nn.Module):
    """Reads an image row by row."""

    def __init__(self, classes):
        super().__init__()
        self.reads, self.last = nn.GRU(8, 16, batch_first=True), nn.Linear(16, classes)

    def forward(self, images):
        return self.last(self.reads(images[:, 0])[0][:, -1])

class Tagger(nn.Module):
    """Tags each row of an image, and votes."""

    def __init__(self, classes):
        super().__init__()
        self.reads = nn.LSTM(8, 12, batch_first=True, bidirectional=True)
        self.tags = nn.Linear(24, classes)

    def forward(self, images):
        return self.tags(self.reads(images[:, 0])[0]).mean(dim=1)
'''
TRAIN = """
import sys
from pathlib import Path

from photofinish.config.base import read_plan
from photofinish.config.experiment import ExperimentPlan
from photofinish.machine.fingerprint import CpuTarget
from photofinish.runs.run import Run
from photofinish.runs.train import train_rank
from photofinish.tracking.client import NoTracker

name, data, out = sys.argv[1:]
experiment = read_plan(Path(f"data/plan/on_cpu/{name}.json"), ExperimentPlan)
host = read_plan(Path("data/plan/hosts/cpu.json"), CpuTarget)
train_rank(Run(name, "cpu", experiment, host, Path(data), Path(out)), None, NoTracker())
"""
"""The stage of a training, without MLflow."""
PARAMS = """
defaults:
  seed: 0
  batch_size: 32
  optimizer: {name: sgd, lr: 0.01}
  input: resident
devices: {cpu: {threads: auto}, gpu: {kind: auto, if_missing: skip}}
datasets:
  digits: {source: digits, validation: 0.1, test: 0.1}
  images: {source: synthetic, images: 640, shape: [3, 32, 32], classes: 10, validation: 0.1,
    test: 0.1}
  letters: {source: synthetic, images: 2400, shape: [1, 28, 28], classes: 10, validation: 0.1,
    test: 0.1}
  patients: {source: "./examples/own-table/patients.py:Patients", validation: 0.15, test: 0.15}
experiments:
  gru: {dataset: digits, model: "./networks.py:Gru", epochs: 20}
  tagging: {dataset: digits, model: "./networks.py:Tagger", batch_size: 16, epochs: 12}
  mlp: {dataset: letters, model: {name: mlp, hidden: [32]}, batch_size: 128, epochs: 150}
  lenet: {dataset: letters, model: lenet, batch_size: 400, epochs: 12}
  resnet: {dataset: images, model: resnet18, epochs: 2}
  loader:
    dataset: images
    model: {name: cnn, channels: [32, 64], hidden: [64]}
    augmentation: {crop_padding: 2}
    input: {name: loader, workers: 2}
    epochs: 10
  table: {dataset: patients, model: {name: mlp, hidden: [32]}, epochs: 300}
scripts:
  script:
    command: python examples/own-script/train.py --device {device} --epochs 8
    deps: [examples/own-script/train.py]
compare: {accelerators: [T4]}
"""
SURE = ("Yes", "No", "Probably yes")


@dataclass(frozen=True)
class Load:
    loops: int
    in_the_middle: bool = False

    def __str__(self) -> str:
        return f"{self.loops}{'-middle' if self.in_the_middle else ''}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loops", type=int, nargs="*", default=[0, 1, 2, 4])
    parser.add_argument("--jobs", nargs="*")
    parser.add_argument("--folder", type=Path, default=Path("benchmarks/results/busy"))
    arguments = parser.parse_args()
    project = arguments.folder.resolve()
    settings = yaml.safe_load(PARAMS)
    jobs = arguments.jobs or [*settings["experiments"], *settings["scripts"]]
    if not (project / "data").is_dir():
        _prepare(project, settings)
    for loops in arguments.loops:
        for in_the_middle in (False, True) if loops else (False,):
            for job in jobs:
                _run(project, settings, job, Load(loops, in_the_middle))
    _sum_up(project)


def _prepare(project: Path, settings: dict[str, Any]) -> None:
    """Make the project, and its splits of the data."""
    project.mkdir(parents=True, exist_ok=True)
    shutil.copytree(ROOT / "examples", project / "examples")
    (project / "params.yaml").write_text(PARAMS, encoding="utf-8")
    (project / "networks.py").write_text(NETWORKS, encoding="utf-8")
    _stage(project, "plan", "--params", "params.yaml", "--stages", str(ROOT / "stages"),
           "--references", str(ROOT / "reference"), "--out", "data/plan")  # fmt: skip
    for dataset in settings["datasets"]:
        plan, raw = f"data/plan/datasets/{dataset}.json", f"data/raw/{dataset}"
        _stage(project, "download", "--dataset", plan, "--out", raw)
        _stage(project, "split", "--dataset", plan, "--raw", raw, "--out", f"data/splits/{dataset}")


def measure(project: Path, job: str, data: str, out: Path) -> None:
    """Measure an experiment on the CPU, as DVC does before its training."""
    _stage(project, "measure", "--device", "cpu", "--steps", f"data/plan/steps_on_cpu/{job}.json",
           "--job", f"data/plan/on_cpu/{job}.json", "--host", "data/plan/hosts/cpu.json",
           "--data", data, "--out", str(out / MEASURED_FOLDER), "--seconds", "5")  # fmt: skip


def _stage(project: Path, stage: str, *arguments: str) -> None:
    command = [sys.executable, str(ROOT / "stages" / f"{stage}.py"), *arguments]
    subprocess.run(command, cwd=project, check=True, stdout=subprocess.DEVNULL)


def _run(project: Path, settings: dict[str, Any], job: str, load: Load) -> None:
    """Run a job beside this load."""
    out = project / "runs" / str(load) / job
    if job not in settings["scripts"]:
        data = f"data/splits/{settings['experiments'][job]['dataset']}"
        with _busy(Load(0) if load.in_the_middle else load, None):
            measure(project, job, data, out)
    with _busy(load, _quiet_timings(project, job) if load.in_the_middle else None):
        if job in settings["scripts"]:
            plan = f"data/plan/scripts/{job}.json"
            _stage(project, "script", "--device", "cpu", "--script", plan, "--host",
                   "data/plan/hosts/cpu.json", "--out", str(out))  # fmt: skip
            return
        command = [sys.executable, "-c", TRAIN, job, data, str(out)]
        environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
        shutil.rmtree(project / ".photofinish/checkpoints", ignore_errors=True)
        subprocess.run(command, cwd=project, env=environment, check=True, stderr=subprocess.DEVNULL)


@contextmanager
def _busy(load: Load, quiet: Job | None) -> Iterator[None]:
    """Run busy loops during the block, or for half of the quiet job's time from its epochs on."""
    loops: list[subprocess.Popen[bytes]] = []
    is_over = threading.Event()

    def begin() -> None:
        loops.extend(subprocess.Popen(BUSY_LOOP) for _ in range(load.loops))

    def in_the_middle(start_seconds: float, seconds: float) -> None:
        if not is_over.wait(start_seconds):
            begin()
            is_over.wait(seconds)
            end()

    def end() -> None:
        while loops:
            loop = loops.pop()
            loop.kill()
            loop.wait()

    thread = None
    if quiet:
        passes_seconds = quiet.total_seconds - quiet.startup_seconds
        times = quiet.startup_seconds + 0.25 * passes_seconds, 0.5 * passes_seconds
        thread = threading.Thread(target=in_the_middle, args=times)
        thread.start()
    else:
        begin()
    try:
        yield
    finally:
        is_over.set()
        if thread:
            thread.join()
        end()


def _result(out: Path) -> Job:
    measured = read_measured(out / MEASURED_FOLDER / MEASURED)
    assert isinstance(measured, Measured)
    if measured.script:
        return job_of_script(measured)
    record = records.read_training(out / records.MODEL)
    assert isinstance(record, records.TrainingRecord)
    times, steps = read_trained(out)
    return job_of_training(TrainedRecords(out.name, record, times, steps, steps.load))


def _quiet_timings(project: Path, job: str) -> Job:
    return _result(project / "runs" / "0" / job)


def _sum_up(project: Path) -> None:
    """Print a line for each run, how near the idle times are, and the wrong answers."""
    runs = wrong = 0
    off = []
    for folder in sorted((project / "runs").iterdir()):
        for out in sorted(folder.iterdir()):
            quiet, busy = _result(project / "runs" / "0" / out.name), _result(out)
            answers = [_answers(decide(compare(JobPair(result)))) for result in (quiet, busy)]
            quiet_seconds = quiet.whole_seconds
            idle_seconds = time_by_load(busy).idle_seconds
            ratio = idle_seconds / quiet_seconds if idle_seconds else None
            if folder.name != "0":
                runs += 1
                off += [max(ratio, 1 / ratio)] if ratio else []
                wrong += any(
                    busy_answer in SURE and busy_answer != quiet_answer
                    for quiet_answer, busy_answer in zip(*answers, strict=True)
                )
            idle = f"idle {ratio:.2f}x" if ratio else "idle not known"
            print(
                f"{folder.name:>9} {out.name:8} {busy.whole_seconds:6.1f} s, "
                f"{busy.whole_seconds / quiet_seconds:5.2f}x, {idle}; "
                f"{' / '.join(answers[1])}"
            )
    print(f"the idle time of {len(off)} of {runs} is known, within {max(off, default=1.0):.2f}; "
          f"{wrong} sure answers were wrong")  # fmt: skip


def _answers(decision: Decision) -> tuple[str, str]:
    """Return the question and the answer."""
    return decision.worth.about, decision.answer


if __name__ == "__main__":
    main()
