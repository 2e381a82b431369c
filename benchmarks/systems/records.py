"""Records of jobs for reference/, by the stages themselves. They need pydantic and scikit-learn."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.probe.findings import ROOT
from benchmarks.systems.images import MEAN_AND_STD
from benchmarks.systems.jobs import Job
from photofinish.config.budget import BudgetPlan
from photofinish.config.datasets import DatasetPlan, TorchvisionDataset
from photofinish.config.devices import Devices
from photofinish.config.experiment import Experiment, ExperimentPlan
from photofinish.files import to_json, write_text_atomically
from photofinish.machine.fingerprint import fingerprint
from photofinish.results import records
from photofinish.results.references import record_all


def experiment_of(job: Job, dataset: str) -> Experiment:
    """Return the experiment of params.yaml that the job is."""
    defaults = {"dataset": dataset, "input": {"name": "resident"}, "seed": 0, "precision": "fp32"}
    return Experiment.model_validate_json(to_json(defaults | job.settings))


def record(jobs: list[Job], data: Path, project: Path, cpu_seconds: float) -> None:
    """Train, evaluate and record jobs on MNIST or Fashion-MNIST in a project of their own.

    Training on the CPU ends after `cpu_seconds`. Files are in `project`/reference.
    """
    for device, host in zip(records.DEVICE_LABELS, fingerprint(Devices()), strict=True):
        write_text_atomically(project / f"hosts/{device}.json", host.model_dump_json())
    write_text_atomically(project / "metrics.json", '{"metrics": [], "custom_code": {}}')
    limits = dict.fromkeys((job.name for job in jobs), cpu_seconds)
    budget = BudgetPlan(
        currency="USD", cpu_hour=None, gpu_hour=None, budget=None, cpu_seconds=limits
    )
    write_text_atomically(project / "budget.json", budget.model_dump_json())
    for job in jobs:
        source = job.images.partition(",")[0]
        mean, std = MEAN_AND_STD.get(job.images, (None, None))
        root = project / "given"  # a copy, as torchvision unpacks the files beside themselves
        shutil.copytree(data / source, root / source, dirs_exist_ok=True)
        dataset = TorchvisionDataset(
            source=source, validation=0, mean=mean, std=std, root=str(root)
        )
        plan = DatasetPlan(name=source, dataset=dataset, local_files=None)
        write_text_atomically(project / "dataset.json", plan.model_dump_json())
        experiment = ExperimentPlan(**dict(experiment_of(job, source)))
        path = f"experiments/{job.name}.json"
        write_text_atomically(project / path, experiment.model_dump_json())
        folders = {"dataset": "dataset.json", "raw": "raw", "out": f"splits/{job.name}"}
        _stage(project, "download", dataset="dataset.json", out="raw")
        _stage(project, "split", **folders)
        shared = {"experiment": path, "data": folders["out"], "budget": "budget.json"}
        for device in records.DEVICE_LABELS:
            own = {"host": f"hosts/{device}.json", "out": f"results/{job.name}/{device}"}
            _stage(project, "train", device=device, **shared, **own)
        out = f"results/{job.name}/{records.EVALUATED}"
        judged = {"results": "results", "data": folders["out"], "metrics": "metrics.json"}
        _stage(project, "evaluate", name=job.name, out=out, **judged)
        record_all(project / "experiments", project / "results", project / "reference", None)


def _stage(project: Path, stage: str, **arguments: str) -> None:
    """Run a stage as DVC does."""
    command = [sys.executable, str(ROOT / "stages" / f"{stage}.py")]
    command += [text for key, value in arguments.items() for text in (f"--{key}", value)]
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("DVC_", "MLFLOW_"))
    }
    environment = inherited | {"DVC_ROOT": str(project)}
    subprocess.run(command, cwd=project, env=environment, check=True)
