"""Jobs of every kind, through `dvc repro`: those of examples/own-jobs.yaml."""

from __future__ import annotations

import csv

import pytest
import yaml
from conftest import ROOT, Project

pytestmark = pytest.mark.slow
AT_LEAST = {"photos": 0.6, "characters": 0.2, "signals": 0.6, "tags": 0.6, "mixed": 0.6}
"""Accuracies that no chance reaches."""


def test_dvc_repro_trains_evaluates_and_answers_jobs_of_every_kind(project: Project) -> None:
    text = (ROOT / "examples/own-jobs.yaml").read_text(encoding="utf-8")
    params = yaml.safe_load(text)
    params["defaults"]["epochs"] = 3
    project.write_params(params)
    project.without_mlflow().repro()
    with (project.root / "report/comparison.csv").open(newline="") as file:
        rows = {row["experiment"]: row for row in csv.DictReader(file) if row["device"] == "cpu"}
    assert set(rows) == set(params["experiments"])
    for name, least in AT_LEAST.items():
        assert float(rows[name]["test_accuracy"]) > least, name
    for name in ("table", "gan", "contrastive"):
        assert rows[name]["test_accuracy"] == ""
        assert float(rows[name]["test_loss"]) > 0
    with (project.root / "results/table/cpu/model/history.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) < 30  # it stopped early
    answers = (project.root / "report/comparison.md").read_text(encoding="utf-8")
    assert all(f"**{name}**: " in answers for name in rows)
