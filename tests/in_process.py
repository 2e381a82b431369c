"""The stages of a project in this process, without DVC, MLflow and a GPU."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import yaml
from conftest import ROOT
from training_process import measure_here, train_here

from photofinish.config.base import read_plan
from photofinish.config.datasets import DatasetPlan
from photofinish.config.experiment import ExperimentPlan
from photofinish.config.loader import read_params
from photofinish.data.packed import PackedSplit
from photofinish.data.sources import download
from photofinish.data.split import read_raw, split
from photofinish.evaluation.evaluate import evaluate, write_evaluation
from photofinish.machine.fingerprint import CpuTarget
from photofinish.planning.plan import write_plan
from photofinish.results import records
from photofinish.runs.run import Run


def train_and_evaluate(name: str, params: dict[str, Any], folder: Path, host: CpuTarget) -> Path:
    """Do what the stages do for an experiment, beside a copy of the examples. Return its results.

    `folder` must be the working directory.
    """
    shutil.copytree(ROOT / "examples", folder / "examples")
    (folder / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    read = read_params(folder / "params.yaml")
    write_plan(read, folder / "plan", ROOT / "stages")
    experiment = read_plan(folder / f"plan/experiments/{name}.json", ExperimentPlan)
    dataset = read_plan(folder / f"plan/datasets/{experiment.dataset}.json", DatasetPlan)
    download(dataset, folder / "raw")
    split(dataset, read_raw(dataset, folder / "raw"), folder / "split")
    results = folder / "results" / name
    run = Run(name, "cpu", experiment, host, folder / "split", results / "cpu")
    measure_here(run)
    train_here(run)
    models, packed = {"cpu": results / "cpu" / records.MODEL}, PackedSplit(folder / "split")
    judged = evaluate(name, models, packed, read.experiments[name].metrics)
    write_evaluation(judged, results / records.EVALUATED)
    none = records.Unavailable(device="gpu", experiment=experiment, reason="no driver")
    records.write_record(results / "gpu" / records.MODEL / records.RECORD, none)
    return results
