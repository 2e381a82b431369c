"""Experiments of params.yaml and of the examples for `python -m benchmarks.ask`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import chdir
from pathlib import Path
from typing import Any

import yaml

from benchmarks.busy import ROOT, TRAIN, measure
from photofinish.commands.ask_experiments import PLAN, sample
from photofinish.config.base import read_plan
from photofinish.config.experiment import Experiment, ExperimentPlan
from photofinish.results import records
from photofinish.results.job import Job
from photofinish.results.measured import TrainedRecords, read_trained
from photofinish.results.measured_jobs import job_of_experiment
from photofinish.results.training_jobs import job_of_training

FILES = {
    "": ROOT / "params.yaml",
    **{f"{name}/": ROOT / f"examples/{name}.yaml" for name in ("own-jobs", "own-table")},
}
"""Files whose experiments are asked about, by the start of their jobs' names."""
EXPERIMENTS = [
    prefix + name
    for prefix, file in FILES.items()
    for name in yaml.safe_load(file.read_text(encoding="utf-8"))["experiments"]
]


class Project:
    """A project with one experiment, in a separate folder."""

    def __init__(self, folder: Path, job: str) -> None:
        prefix = job[: job.find("/") + 1]
        self._folder, self._name = folder, job.removeprefix(prefix)
        settings: dict[str, Any] = yaml.safe_load(FILES[prefix].read_text(encoding="utf-8"))
        experiment = settings["experiments"][self._name]
        experiment.pop("time_limit", None)
        dataset = experiment["dataset"]
        self._settings = settings | {
            "experiments": {self._name: experiment},
            "datasets": {dataset: settings["datasets"][dataset]},
        }
        shutil.copytree(ROOT / "examples", folder / "examples")
        (folder / "stages").symlink_to(ROOT / "stages")
        self.plan(1000)
        plan, raw = f"data/plan/datasets/{dataset}.json", f"data/raw/{dataset}"
        self._split = f"data/splits/{dataset}"
        self._stage("download", "--dataset", plan, "--out", raw)
        self._stage("split", "--dataset", plan, "--raw", raw, "--out", self._split)

    def plan(self, epochs: int) -> None:
        """Plan the experiment with so many epochs."""
        self._settings["experiments"][self._name]["epochs"] = epochs
        text = yaml.safe_dump(self._settings, sort_keys=False)
        (self._folder / "params.yaml").write_text(text, encoding="utf-8")
        self._stage("plan", "--params", "params.yaml", "--stages", str(ROOT / "stages"),
                    "--references", str(ROOT / "reference"), "--out", str(PLAN))  # fmt: skip

    def ask(self, seconds: float) -> Job:
        with chdir(self._folder):
            planned = read_plan(PLAN / f"experiments/{self._name}.json", ExperimentPlan)
            settings = planned.model_dump_json(include=set(Experiment.model_fields))
            experiment = Experiment.model_validate_json(settings)
            return job_of_experiment(sample(self._name, "cpu", planned, seconds), experiment)

    def run(self) -> Job:
        """Train as a stage does, without MLflow."""
        out = self._folder / "out"
        measure(self._folder, self._name, self._split, out)
        environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
        command = [sys.executable, "-c", TRAIN, self._name, self._split, str(out)]
        subprocess.run(
            command, cwd=self._folder, env=environment, check=True, stdout=subprocess.DEVNULL
        )
        record = records.read_training(out / records.MODEL)
        assert isinstance(record, records.TrainingRecord)
        times, steps = read_trained(out)
        return job_of_training(TrainedRecords(self._name, record, times, steps, steps.load))

    def _stage(self, stage: str, *arguments: str) -> None:
        command = [sys.executable, str(ROOT / "stages" / f"{stage}.py"), *arguments]
        subprocess.run(command, cwd=self._folder, check=True, stdout=subprocess.DEVNULL)
