"""The head: finds what is missing, spreads it over the workers, and brings the results back.

`make spread` runs `python -m photofinish.remote.spread`, after changes are committed and pushed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ruamel.yaml import YAML

from photofinish.config.loader import Params, read_params
from photofinish.errors import ConfigError, UserError, run_stage
from photofinish.files import project_root, state_folder
from photofinish.locks import exclusive
from photofinish.machine.fingerprint import Machine, name_problem, read_machines
from photofinish.remote.jobs import (
    PLAN,
    PROGRESS,
    Job,
    clone_at,
    committed,
    environment_of,
    run_job,
    stop_job,
)
from photofinish.remote.worker import (
    DASK,
    HEAD,
    PLANNED,
    code_version,
    key_of,
    require_address,
    require_dask,
    resources_of,
)
from photofinish.results.records import DEVICE_LABELS, DeviceLabel
from photofinish.results.references import record_all

_NOTE_MISSING = "PHOTOFINISH_NOTE_MISSING"
"""Variable that names the file in which a training stage notes itself instead of training."""
_PARAMS, _MACHINES = Path("params.yaml"), Path("machines")
_HERE = "this machine"
_POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Task:
    """A job and the machines that may run it."""

    job: Job
    where: str
    """Name of the machine, or `this machine`."""
    key: str | None = None
    """Dask resource that the machine has. None for an evaluation, which any worker may run."""


def spread(on: list[str], listen: str) -> None:
    """Train what is missing, here and on further machines, and write one report."""
    commit = committed(Path())
    projects = [Project(Path()), *(Project.on(machine, commit) for machine in on)]
    # A further machine may be in params.yaml too, and then has the same titles.
    tasks = {task.job.title: task for project in projects for task in project.missing(commit)}
    print(f"{sum(task.key is not None for task in tasks.values())} to be trained", flush=True)
    if tasks and (failed := _run_all(tasks, listen)):
        raise UserError(
            f"{len(failed)} failed, as printed above ({', '.join(failed)}). The rest is in the "
            f"remote: `make spread` again runs only what failed"
        )
    for project in reversed(projects):  # the report shows the records of further machines
        project.bring_back()


@dataclass(frozen=True)
class Project:
    """A clone of the project, trained on the machines that its params.yaml names."""

    folder: Path
    further: str | None = None
    """Machine whose results are brought back as records."""

    @classmethod
    def on(cls, machine: str, commit: str) -> Project:
        """Make a clone whose experiments run on one further machine."""
        if problem := name_problem(machine, _MACHINES):
            raise ConfigError(f"ON={machine}: {problem}")
        folder = state_folder() / "further" / machine
        clone_at(Path(), folder, commit)
        params = YAML(typ="safe").load(_PARAMS)
        devices = params.get("devices") or {}
        params["devices"] = {
            name: {**(devices.get(name) or {}), "machine": machine} for name in DEVICE_LABELS
        }
        text = json.dumps(params, indent=2, default=str)  # JSON is YAML too
        (folder / _PARAMS).write_text(text, encoding="utf-8")
        return cls(folder, machine)

    def missing(self, commit: str) -> list[Task]:
        """Return the tasks that neither this clone nor the remote has a result of."""
        self._dvc("repro", "--pull", "split", "download-weights")
        self._dvc("push", "--run-cache", "split", "download-weights")
        tasks = []
        names = []
        for name, device in self._without_result():
            if name not in names:
                names.append(name)
            host = json.loads((self.folder / PLAN / "hosts" / f"{device}.json").read_bytes())
            if host.get("missing"):  # no accelerator, which `evaluate` records
                continue
            machine = getattr(self._params.devices, device).machine
            title = f"{name} on {device}" + (f" of {machine}" if machine else "")
            key = key_of(self._machines[machine or _HERE], device)
            job = self._job(title, name, (f"train-{device}@{name}",), commit)
            tasks.append(Task(job, machine or _HERE, key))
        for name in names:
            stages = (f"train-cpu@{name}", f"train-gpu@{name}", f"evaluate@{name}")
            title = f"evaluation of {name}" + (f" on {self.further}" if self.further else "")
            tasks.append(Task(self._job(title, name, stages, commit), "any machine"))
        return tasks

    def _without_result(self) -> list[tuple[str, DeviceLabel]]:
        """Let DVC restore all results. It runs a stage without result, which notes itself."""
        note = (self.folder / ".photofinish" / "missing").resolve()
        note.parent.mkdir(exist_ok=True)
        note.write_text("", encoding="utf-8")
        command = ["repro", "--pull", "--single-item", "--keep-going", "train-cpu", "train-gpu"]
        ran = self._run(*command, capture=True, **{_NOTE_MISSING: str(note)})
        noted = note.read_text(encoding="utf-8").splitlines()
        if ran.returncode and not noted:
            where = self.folder.resolve()
            raise UserError(f"dvc {' '.join(command)} in {where} failed:\n{ran.stdout}{ran.stderr}")
        return [
            (name, device)
            for name in self._params.experiments
            for device in DEVICE_LABELS
            if f"{device} {name}" in noted
        ]

    def _job(self, title: str, name: str, stages: tuple[str, ...], commit: str) -> Job:
        dataset, plan = self._params.experiments[name].dataset, self.folder / PLAN
        texts = {}
        for path in plan.rglob("*"):
            is_needed = path.stem == name or path.parent.name in ("hosts", "code")
            if is_needed and path.is_file():
                texts[path.relative_to(plan).as_posix()] = path.read_text(encoding="utf-8")
        lock = YAML(typ="safe").load(self.folder / "dvc.lock")
        data = (f"split@{dataset}", "download-weights")
        lock["stages"] = {stage: lock["stages"][stage] for stage in data}
        return Job(
            title=title,
            stages=stages,
            experiment=name,
            dataset=dataset,
            commit=commit,
            plan=texts,
            # JSON is YAML to DVC, with quotes around a checksum that looks like a number.
            lock=json.dumps(lock),
            tracked_in=os.environ.get("MLFLOW_EXPERIMENT_NAME") or Path.cwd().name,
        )

    def bring_back(self) -> None:
        """Restore every result and write the report, or the records of a further machine."""
        if self.further is None:
            self._dvc("repro", "--pull")
            return
        self._dvc("repro", "--pull", "evaluate")
        experiments, results = self.folder / PLAN / "experiments", self.folder / "results"
        record_all(experiments, results, Path("reference"), self.further, from_elsewhere=True)

    @cached_property
    def _params(self) -> Params:
        return read_params(self.folder / _PARAMS)

    @cached_property
    def _machines(self) -> dict[str, Machine]:
        named = read_machines(self._params.devices, self.folder / _MACHINES)
        return {_HERE: Machine.here(), **named}

    def _dvc(self, *arguments: str) -> None:
        if self._run(*arguments).returncode:
            command = f"dvc {' '.join(arguments)}"
            raise UserError(f"{command} failed in {self.folder.resolve()}, as printed above")

    def _run(
        self, *arguments: str, capture: bool = False, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        environment = dict(os.environ)
        if self.further:  # the data of the user is in the project's folder
            environment = environment_of(self.folder) | {"DVC_ROOT": str(project_root())}
        return subprocess.run(
            [sys.executable, "-m", "dvc", *arguments],
            cwd=self.folder,
            env=environment | variables,
            capture_output=capture,
            text=True,
            check=False,
        )


def _run_all(tasks: dict[str, Task], listen: str) -> list[str]:
    """Let workers train, then evaluate. Return the titles of the tasks that failed."""
    trainings = {title: task for title, task in tasks.items() if task.key}
    evaluations = {title: task for title, task in tasks.items() if not task.key}
    keys = [task.key for task in trainings.values()]
    own = resources_of(Machine.here())
    with _scheduler(listen, own if own.keys() & set(keys) else None) as (client, address):
        client.set_metadata([PLANNED], {"code": code_version(), "keys": keys})
        failed = _run(client, trainings, address)
        lost = {tasks[title].job.experiment for title in failed}
        complete = {
            title: task for title, task in evaluations.items() if task.job.experiment not in lost
        }
        return failed + _run(client, complete, address)


def _run(client: Any, tasks: dict[str, Task], address: str) -> list[str]:
    """Run the tasks, and print the outcome of each. Return the titles of those that failed.

    Without `retries`, because what failed once fails again. Dask replaces lost workers.
    """
    futures = {
        title: client.submit(
            run_job,
            task.job.model_dump_json(),
            key=title,
            resources={task.key: 1} if task.key else None,
        )
        for title, task in tasks.items()
    }

    def show(event: tuple[float, dict[str, str]]) -> None:
        print("{title} at {worker}: {line}".format(**event[1]), flush=True)

    client.subscribe_topic(PROGRESS, show)
    failed = []
    unserved: set[str] = set()
    while futures:
        for title in [title for title, future in futures.items() if future.done()]:
            future, outcome = futures.pop(title), "done"
            if future.status == "error":
                failed.append(title)
                outcome = f"failed: {future.exception()}"
            print(f"{title}: {outcome}; {len(futures)} left", flush=True)
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
        keys = {None, *(key for worker in workers for key in worker["resources"])}
        lacking = {tasks[title].where for title in futures if tasks[title].key not in keys}
        for where in sorted(lacking - unserved):
            how = f"waiting for `make worker HEAD={address}` there"
            print(f"{where} has no worker: {how}", flush=True)
        unserved = lacking
        time.sleep(_POLL_SECONDS)
    return failed


@contextmanager
def _scheduler(listen: str, resources: dict[str, float] | None) -> Iterator[tuple[Any, str]]:
    """Give a Dask client and the address for workers. With `resources`, a worker runs here too."""
    from distributed import Client, LocalCluster

    address = urlsplit(listen)
    host, _, port = address.netloc.rpartition(":")
    try:
        cluster = LocalCluster(
            n_workers=0 if resources is None else 1,
            threads_per_worker=1,
            processes=False,
            memory_limit=0,
            host=f"{address.scheme}://{host}",
            scheduler_port=int(port),
            scheduler_kwargs={"dashboard": False, "dashboard_address": "127.0.0.1:0"},
            resources=resources,
            local_directory=str(state_folder() / "dask"),
        )
    except (OSError, RuntimeError) as error:
        problem = f"{listen} can't be listened at: {error}"
        raise UserError(f"{problem}. LISTEN=... names another address") from error
    with cluster, Client(cluster) as client:
        name = platform.node() if host in ("0.0.0.0", "[::]") else host  # noqa: S104
        try:
            yield client, f"{address.scheme}://{name}:{port}"
        finally:
            stop_job()


def main() -> None:
    """Spread, with the options of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m photofinish.remote.spread", description=__doc__
    )
    parser.add_argument("--on", default="", help="names of further machines to record")
    parser.add_argument(
        "--listen", default=HEAD, help="address for workers; tcp://0.0.0.0:8786 is open to all"
    )
    args = parser.parse_args()
    require_dask()
    require_address(args.listen, "LISTEN")  # before data is made and pushed
    import dask

    dask.config.set(DASK)
    with exclusive(state_folder() / "locks", "spread", patience_seconds=0):
        spread(args.on.split(), args.listen)


if __name__ == "__main__":
    run_stage(main)
