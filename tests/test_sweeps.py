"""Sweeps have a dvc.lock of their own, and share one MLflow store."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import yaml
from conftest import ONE_THREAD, Project

RATES = {"coarse": 0.1, "fine": 0.01}


def add_sweep(project: Project, name: str, learning_rate: float) -> None:
    """Add a sweep of one experiment, as docs/sweeps.md describes."""
    folder = project.root / "sweeps" / name
    folder.mkdir(parents=True)
    for link in ("dvc.yaml", "stages", "src", "reference"):
        (folder / link).symlink_to(Path("..", "..", link))
    params = {
        "defaults": {
            "epochs": 1,
            "batch_size": 128,
            "optimizer": {"name": "sgd", "lr": learning_rate},
        },
        "devices": ONE_THREAD,
        "datasets": {"digits": {"source": "digits", "validation": 0.15, "test": 0.15}},
        "experiments": {"linear": {"dataset": "digits", "model": "linear"}},
    }
    (folder / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")


@pytest.mark.slow
def test_two_sweeps_have_their_own_lock_and_one_mlflow_store(project: Project) -> None:
    project.environment["CUDA_VISIBLE_DEVICES"] = ""
    for name, learning_rate in RATES.items():
        add_sweep(project, name, learning_rate)
    project.commit()
    project.repro("--recursive", "sweeps")
    written = ("dvc.lock", "metrics/", "plots/")
    expected = [f"?? sweeps/{name}/{path}" for name in RATES for path in written]
    assert project.git("status", "--porcelain").splitlines() == expected
    query = "SELECT e.name, r.name FROM runs r JOIN experiments e USING (experiment_id)"
    with closing(sqlite3.connect(project.root / "mlflow.db")) as connection:
        runs = connection.execute(query).fetchall()
    names = ("linear/cpu", "comparison")
    assert sorted(runs) == sorted(
        (f"photofinish-{sweep}", name) for sweep in RATES for name in names
    )
