"""`python -m benchmarks.systems`: the jobs of the five examples, measured on a bare machine."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from conftest import ROOT, run_command

sys.path.insert(0, str(ROOT))  # the benchmarks are beside the package, not in it

from benchmarks.systems.__main__ import table
from benchmarks.systems.images import write_caltech
from benchmarks.systems.jobs import SYSTEMS
from photofinish.config.datasets import CsvDataset, DatasetPlan
from photofinish.config.experiment import Experiment
from photofinish.config.loader import read_params
from photofinish.data.raw_data import read_raw
from photofinish.data.split import split
from photofinish.files import to_json

NOT_MEASURED = {"save_weights", "schedule"}
"""Settings that change no step."""


@pytest.mark.parametrize("system", SYSTEMS)
def test_its_jobs_are_the_examples_experiments(system: str) -> None:
    jobs = {job.name: job for job in SYSTEMS[system]}
    for name, experiment in read_params(ROOT / "examples" / f"{system}.yaml").experiments.items():
        given = {"dataset": experiment.dataset, "input": {"name": "resident"}, "seed": 0}
        settings = given | {"precision": "fp32"} | jobs[name].settings
        own = Experiment.model_validate_json(to_json(settings)).model_dump(exclude=NOT_MEASURED)
        expected = experiment.model_dump(exclude=NOT_MEASURED)
        for model in (own["model"], expected["model"]):
            model.pop("weights", None)  # published weights are not downloaded
        assert own == expected


@pytest.mark.slow
def test_a_bare_machine_measures_each_job_and_gets_a_table(tmp_path: Path) -> None:
    paths = ROOT / "tests" / "bare", ROOT / "src"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))}
    command = [sys.executable, "-m", "benchmarks.systems", "--small", "--seconds", "0.4"]
    command += ["--only", "caltech101-cnn", "--out", str(tmp_path)]
    ran = run_command(command, ROOT, environment)
    assert ran.returncode == 0, ran.stderr
    lines = (tmp_path / "systems.jsonl").read_text(encoding="utf-8").splitlines()
    measured = {line["job"]: line for line in map(json.loads, lines)}
    jobs = [job.name for job in SYSTEMS["caltech101-cnn"]]
    assert [*measured] == jobs
    assert all(0 < line["epoch_seconds"] < 60 for line in measured.values())
    text = (tmp_path / "systems.md").read_text(encoding="utf-8")
    assert [row.split()[1].strip(",") for row in text.splitlines()[2 : 2 + len(jobs)]] == jobs


def test_the_table_has_both_devices_and_what_was_not_run() -> None:
    cpu = {
        "system": "mnist-linear", "job": "mnist-linear", "device": "cpu", "device_name": "cpu",
        "epoch_seconds": 0.5, "lowest_seconds": 0.4, "highest_seconds": 0.6, "epochs": 5,
        "planned_epochs": 30, "steps": 2345, "test_accuracy": 0.9083, "is_real": True,
    }  # fmt: skip
    gpu = cpu | {"device": "cuda", "device_name": "NVIDIA T4", "epoch_seconds": 0.25, "epochs": 0}
    missing = {"system": "cifar10-resnet18", "job": "ddp", "device": "gpu", "not_run": "one GPU"}
    text = table([cpu, gpu, missing], {"processor": "some"})
    (row,) = [row for row in text.splitlines() if row.startswith("| mnist-linear |")]
    assert "| 2x | 15 s / 7.5 s |" in row
    assert "Not run: ddp of cifar10-resnet18 on gpu: one GPU" in text


def test_the_made_up_photographs_are_a_data_set_of_three_parts(tmp_path: Path) -> None:
    write_caltech(tmp_path / "made", count=1010)
    parts = {part: str(tmp_path / f"made/{part}.csv") for part in ("train", "validation", "test")}
    dataset = CsvDataset.model_validate({"source": "csv", "parts": parts, "size": 32})
    plan = DatasetPlan(name="made", dataset=dataset, local_files=None)
    manifest = split(plan, read_raw(plan, tmp_path / "raw"), tmp_path / "split")
    assert manifest.counts == {"train": 808, "validation": 101, "test": 101}
    assert len(manifest.class_names) == 101
