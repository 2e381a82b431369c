"""What tests of many machines are made of: machines unlike this one, trainings for them, and a head's project."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from conftest import Project, clone_project

from photofinish.fleet.jobs import Job
from photofinish.fleet.project import Task
from photofinish.fleet.worker import fleet_code
from photofinish.machine.fingerprint import Machine, fingerprint
from photofinish.params.devices import Devices

LIKE_LAB = {"OMP_NUM_THREADS": "1", "OMP_DYNAMIC": "false"}
"""of what counts: with these, this machine is the one called lab"""


def like_this_with(cores: int) -> Machine:
    """This machine, but for the number of its cores."""
    here = Machine.here()
    return here.model_copy(update={"cpu": replace(here.cpu, usable_cores=cores, cgroup_cores_limit=None)})


LAB, BOX = like_this_with(96), like_this_with(64)


def task(name: str, machine: Machine = LAB, where: str = "lab") -> Task:
    """A training that a machine is to do."""
    job = Job(
        title=name,
        experiment=name,
        device="cpu",
        dataset="digits",
        commit="0" * 40,
        plan={},
        lock="",
        weights="",
        tracked_in="",
    )
    host, _ = fingerprint(Devices(), {})
    host = host.model_copy(update={"cpu": machine.cpu, "threads": 96})
    return Task(job, where, machine, host, expected_seconds=1.0)


def arrival(worker: str, machine: Machine, code: str | None = None, slot: str | None = None) -> dict[str, Any]:
    """What a worker tells of itself; by default, each is on a machine of its own."""
    facts = {"name": worker, "machine": machine.model_dump_json(), "slot": slot or worker}
    return {**facts, "code": code or fleet_code()}


def make_head(root: Path, params: dict[str, Any]) -> Project:
    """A committed project that knows a machine called lab, with a DVC remote in a folder."""
    project = clone_project(root).without_mlflow()
    project.environment["CUDA_VISIBLE_DEVICES"] = ""
    machine = project.run("python", "-m", "photofinish.machine.fingerprint", **LIKE_LAB)
    (project.root / "machines").mkdir()
    (project.root / "machines/lab.json").write_text(machine.stdout, encoding="utf-8")
    project.write_params(params)
    added = project.run("dvc", "remote", "add", "--default", "shared", str(root.with_name("remote")))
    assert added.returncode == 0, added.stderr
    project.commit()
    return project
