"""Sweeps: folders of experiments with a dvc.lock of their own, one MLflow store and one report over all."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import yaml
from conftest import ONE_THREAD, Project

from photofinish.config.loader import read_params
from photofinish.plan import SWEEPS_PAY_FROM, advise_sweeps

LINKS = ("dvc.yaml", "stages", "src", "reference")


def add_sweep(project: Project, name: str, learning_rate: float) -> None:
    """As docs/sweeps.md has it, with one experiment of a second."""
    folder = project.root / "sweeps" / name
    folder.mkdir(parents=True)
    for link in LINKS:
        (folder / link).symlink_to(Path("..", "..", link))
    params = {
        "defaults": {"epochs": 1, "batch_size": 128, "optimizer": {"name": "sgd", "lr": learning_rate}},
        "devices": ONE_THREAD,
        "datasets": {"digits": {"source": "digits", "validation": 0.15, "test": 0.15}},
        "experiments": {"linear": {"dataset": "digits", "model": "linear"}},
    }
    (folder / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")


@pytest.mark.slow
def test_two_sweeps_have_their_own_lock_one_mlflow_store_and_one_report(project: Project) -> None:
    project.environment["CUDA_VISIBLE_DEVICES"] = ""
    for name, learning_rate in {"coarse": 0.1, "fine": 0.01}.items():
        add_sweep(project, name, learning_rate)
    project.commit()
    project.repro("--recursive", "sweeps")
    made = ("dvc.lock", "metrics/", "plots/")
    of_each = [f"?? sweeps/{name}/{path}" for name in ("coarse", "fine") for path in made]
    assert project.git("status", "--porcelain").splitlines() == of_each
    with closing(sqlite3.connect(project.root / "mlflow.db")) as connection:
        runs = connection.execute(
            "SELECT e.name, r.name FROM runs r JOIN experiments e USING (experiment_id)"
        ).fetchall()
    names = ("linear/cpu", "comparison")
    assert sorted(runs) == sorted((f"photofinish-{sweep}", name) for sweep in ("coarse", "fine") for name in names)


@pytest.mark.parametrize("count", [SWEEPS_PAY_FROM - 1, SWEEPS_PAY_FROM])
def test_plan_tells_from_which_number_of_experiments_on_sweeps_pay(
    params_file: Path, capsys: pytest.CaptureFixture[str], count: int
) -> None:
    experiments = "".join(f"  linear-{number}: {{dataset: digits, model: linear}}\n" for number in range(count))
    params_file.write_text(
        "defaults: {epochs: 1, batch_size: 128, optimizer: {name: sgd, lr: 0.1}}\n"
        f"datasets: {{digits: {{source: digits, validation: 0.15, test: 0.15}}}}\nexperiments:\n{experiments}",
        encoding="utf-8",
    )
    advise_sweeps(read_params(params_file))
    assert ("docs/sweeps.md" in capsys.readouterr().out) == (count == SWEEPS_PAY_FROM)
