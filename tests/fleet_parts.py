"""What tests of many machines are made of: machines unlike this one, trainings for them, a Dask that runs nothing, and
a head's project."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from conftest import Project, clone_project

from photofinish.fleet import trainings
from photofinish.fleet.jobs import Job
from photofinish.fleet.trainings import Connected, Task, Trainings
from photofinish.fleet.worker import fleet_code, key_of
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


KEY = frozenset({key_of(LAB, "cpu")})
A, B, C = (Connected(name, f"tcp://{name}:1", KEY) for name in ("a", "b", "c"))


@dataclass
class Future:
    """Dask's, ended by the test."""

    worker: str
    job: Job
    status: str = "pending"
    problem: str = ""

    def done(self) -> bool:
        return self.status != "pending"

    def exception(self) -> RuntimeError:
        return RuntimeError(self.problem)

    def fail(self, problem: str) -> None:
        self.status, self.problem = "error", problem


class Client:
    """Dask's, which runs nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(trainings, "over", Over)
        self.given: list[Future] = []
        self.over: set[str] = set()

    def submit(self, _function: Any, text: str, workers: list[str], **_options: Any) -> Future:
        self.given.append(Future(workers[0], Job.model_validate_json(text)))
        return self.given[-1]

    def cancel(self, _futures: list[Future]) -> None: ...

    def given_now(self) -> list[Future]:
        given, self.given = self.given, []
        return given


class Over:
    def __init__(self, attempt: str, client: Client) -> None:
        self._attempt, self._client = attempt, client

    def set(self) -> None:
        self._client.over.add(self._attempt)


def handing_out(client: Client, *tasks: Task, slots: str = "abc") -> Trainings:
    """With three workers that have told of themselves."""
    handed_out = Trainings(client, tasks, "a worker there")
    for worker, slot in zip("abc", slots, strict=True):
        handed_out.hear(arrival(worker, LAB, slot=slot))
    return handed_out


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
