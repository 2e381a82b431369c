"""The head: finds what is missing, spreads it over the workers, and brings everything back.

`python -m photofinish.remote.spread`, as `make spread` runs it, in a project whose changes are committed and pushed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
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

from rich.live import Live
from rich.table import Table
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
    fleet_code,
    key_of,
    require_address,
    require_dask,
    resources_of,
)
from photofinish.results.records import DEVICE_LABELS, DeviceLabel
from photofinish.results.references import record_all
from photofinish.wording import seconds

_NOTE_MISSING = "PHOTOFINISH_NOTE_MISSING"
"""Variable that names the file into which a training stage writes itself instead of training."""
_PARAMS, _MACHINES = Path("params.yaml"), Path("machines")
_HERE = "this machine"
_POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Task:
    """A job and the machines that may run it."""

    job: Job
    where: str
    """Name of its machine, or `this machine`."""
    key: str | None = None
    """Resource of Dask's that its machine has. Any worker may evaluate."""
    device: DeviceLabel = "cpu"
    host: str = ""
    """The plan's file about the device."""


def spread(on: list[str], listen: str) -> None:
    """Train what is missing, here and on further machines, and write one report."""
    commit = committed(Path())
    projects = [Project(Path()), *(Project.on(machine, commit) for machine in on)]
    found = [task for project in projects for task in project.missing(commit)]
    tasks = {task.job.title: task for task in found}  # a further machine may be in params.yaml, too
    print(f"{sum(task.key is not None for task in tasks.values())} to be trained", flush=True)
    if tasks and (failed := _run_all(tasks, listen)):
        raise UserError(
            f"{len(failed)} failed, as printed above ({', '.join(failed)}). The rest is in the remote: "
            f"`make spread` again runs only what failed"
        )
    for project in reversed(
        projects
    ):  # the project's own report shows the records of the further machines
        project.bring_back()


@dataclass(frozen=True)
class Project:
    """A clone of the project, trained on the machines that its params.yaml names."""

    folder: Path
    further: str | None = None
    """The machine whose results are brought back as records."""

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
        (folder / _PARAMS).write_text(
            json.dumps(params, indent=2, default=str), encoding="utf-8"
        )  # which is YAML too
        return cls(folder, machine)

    def missing(self, commit: str) -> list[Task]:
        """Return what neither this clone nor the remote has a result of. Push the data for it."""
        self._dvc("repro", "--pull", "split", "download-weights")
        self._dvc("push", "--run-cache", "split", "download-weights")
        trainings = [
            self._training(name, device, commit) for name, device in self._without_result()
        ]
        names = dict.fromkeys(task.job.experiment for task in trainings)
        # Without the accelerator there is only that to record, which `evaluate` does with it.
        trainings = [
            task
            for task in trainings
            if task.device == "cpu" or not json.loads(task.host)["missing"]
        ]
        return [*trainings, *(self._evaluation(name, commit) for name in names)]

    def _without_result(self) -> list[tuple[str, DeviceLabel]]:
        """Ask DVC to restore every training. It runs the stage of one that it has no result of, which notes itself."""
        note = (self.folder / ".photofinish" / "missing").resolve()
        note.parent.mkdir(exist_ok=True)
        note.write_text("", encoding="utf-8")
        command = ("repro", "--pull", "--single-item", "--keep-going", "train-cpu", "train-gpu")
        ran = self._run(*command, capture=True, **{_NOTE_MISSING: str(note)})
        noted = {tuple(line.split()) for line in note.read_text(encoding="utf-8").splitlines()}
        if ran.returncode and not noted:
            raise UserError(
                f"dvc {' '.join(command)} in {self.folder.resolve()} failed:\n{ran.stdout}{ran.stderr}"
            )
        return [
            (name, device)
            for name in self._params.experiments
            for device in DEVICE_LABELS
            if (device, name) in noted
        ]

    def _training(self, name: str, device: DeviceLabel, commit: str) -> Task:
        machine = getattr(self._params.devices, device).machine
        title = f"{name} on {device}" + (f" of {machine}" if machine else "")
        key = key_of(self._machines[machine or _HERE], device)
        host = (self.folder / PLAN / "hosts" / f"{device}.json").read_text(encoding="utf-8")
        job = self._job(title, name, (f"train-{device}@{name}",), commit)
        return Task(job, machine or _HERE, key, device, host)

    def _evaluation(self, name: str, commit: str) -> Task:
        stages = (f"train-cpu@{name}", f"train-gpu@{name}", f"evaluate@{name}")
        title = f"evaluation of {name}" + (f" on {self.further}" if self.further else "")
        return Task(self._job(title, name, stages, commit), "any machine")

    def _job(self, title: str, name: str, stages: tuple[str, ...], commit: str) -> Job:
        dataset, plan = self._params.experiments[name].dataset, self.folder / PLAN
        files = [path for path in plan.rglob("*") if path.is_file()]
        files = [
            path for path in files if path.stem == name or path.parent.name in ("hosts", "code")
        ]
        data = {
            stage: self._lock["stages"][stage] for stage in (f"split@{dataset}", "download-weights")
        }
        return Job(
            title=title,
            stages=stages,
            experiment=name,
            dataset=dataset,
            commit=commit,
            plan={
                path.relative_to(plan).as_posix(): path.read_text(encoding="utf-8")
                for path in files
            },
            # JSON is YAML to DVC, with quotes around a checksum that looks like a number.
            lock=json.dumps({**self._lock, "stages": data}),
            tracked_in=os.environ.get("MLFLOW_EXPERIMENT_NAME") or Path.cwd().name,
        )

    def bring_back(self) -> None:
        """Restore every result and write the report, or the records of a further machine."""
        if self.further is None:
            self._dvc("repro", "--pull")
        else:
            self._dvc("repro", "--pull", "evaluate")
            experiments, results = self.folder / PLAN / "experiments", self.folder / "results"
            record_all(experiments, results, Path("reference"), self.further, from_elsewhere=True)

    @cached_property
    def _params(self) -> Params:
        return read_params(self.folder / _PARAMS)

    @cached_property
    def _machines(self) -> dict[str, Machine]:
        return {
            _HERE: Machine.here(),
            **read_machines(self._params.devices, self.folder / _MACHINES),
        }

    @cached_property
    def _lock(self) -> dict[str, Any]:
        lock: dict[str, Any] = YAML(typ="safe").load(self.folder / "dvc.lock")
        return lock

    def _dvc(self, *arguments: str) -> None:
        if self._run(*arguments).returncode:
            raise UserError(
                f"dvc {' '.join(arguments)} failed in {self.folder.resolve()}, as printed above"
            )

    def _run(
        self, *arguments: str, capture: bool = False, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **variables}
        if self.further:  # the user's images lie where the project has them
            environment = {
                **environment_of(self.folder),
                "DVC_ROOT": str(project_root()),
                **variables,
            }
        command = [sys.executable, "-m", "dvc", *arguments]
        return subprocess.run(
            command,
            cwd=self.folder,
            env=environment,
            capture_output=capture,
            text=True,
            check=False,
        )


def _run_all(tasks: dict[str, Task], listen: str) -> list[str]:
    """Let workers run the tasks, by their titles. Return the titles of those that failed."""
    trainings = {
        task.key: (task.device, task.where, task.host) for task in tasks.values() if task.key
    }
    own = resources_of(Machine.here())
    with _scheduler(listen, own if own.keys() & trainings.keys() else None) as (client, address):
        client.set_metadata([PLANNED], {"code": fleet_code(), "trainings": trainings})
        progress = Progress()
        client.subscribe_topic(PROGRESS, lambda event: progress.update(**event[1]))
        running = {title: _submit(client, task) for title, task in tasks.items() if task.key}
        waiting = {title: task for title, task in tasks.items() if title not in running}
        failed: dict[str, Task] = {}
        unserved: set[str] = set()
        with Live(get_renderable=progress.table, transient=True):
            while waiting or running:
                for title in [title for title, future in running.items() if future.done()]:
                    future, outcome = running.pop(title), "done"
                    progress.rows.pop(title, None)
                    if future.status == "error":
                        failed[title], outcome = tasks[title], f"failed: {future.exception()}"
                    print(f"{title}: {outcome}; {len(waiting) + len(running)} left", flush=True)
                in_training = {tasks[title].job.experiment for title in running}
                lost = {task.job.experiment for task in failed.values()}
                for title in [
                    title
                    for title, task in waiting.items()
                    if task.job.experiment not in in_training
                ]:
                    task = waiting.pop(title)
                    if task.job.experiment not in lost:
                        running[title] = _submit(client, task)
                workers = client.scheduler_info(n_workers=-1)["workers"].values()
                keys = {None, *(key for worker in workers for key in worker["resources"])}
                lacking = {tasks[title].where for title in running if tasks[title].key not in keys}
                for where in sorted(lacking - unserved):
                    print(
                        f"{where} has no worker: waiting for `make worker HEAD={address}` there",
                        flush=True,
                    )
                unserved = lacking
                time.sleep(_POLL_SECONDS)
    return list(failed)


def _submit(client: Any, task: Task) -> Any:
    """Submit a job without `retries`, because what failed once fails again. Dask replaces lost workers."""
    resources = {task.key: 1} if task.key else None
    return client.submit(
        run_job, task.job.model_dump_json(), key=task.job.title, resources=resources
    )


@contextmanager
def _scheduler(listen: str, resources: dict[str, float] | None) -> Iterator[tuple[Any, str]]:
    """Give a client of Dask's, and the address that workers reach it at. With `resources`, a worker runs here too."""
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
        raise UserError(
            f"{listen} can't be listened at: {error}. LISTEN=... names another address"
        ) from error
    with cluster, Client(cluster) as client:
        name = platform.node() if host in ("0.0.0.0", "[::]") else host  # noqa: S104
        try:
            yield client, f"{address.scheme}://{name}:{port}"
        finally:
            stop_job()


class Progress:
    """Table of what runs now, with the time left by the epochs that are done."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[str, str, str]] = {}
        self._first: dict[str, tuple[float, int]] = {}

    def update(self, title: str, worker: str, line: str) -> None:
        """Take in the last line that a job printed."""
        left = ""
        if found := re.search(r"epoch (\d+)/(\d+)", line):
            done, total, now_seconds = int(found[1]), int(found[2]), time.monotonic()
            began_seconds, at_first = self._first.setdefault(title, (now_seconds, done))
            if done > at_first:
                left = seconds((now_seconds - began_seconds) / (done - at_first) * (total - done))
        self.rows[title] = worker, line, left

    def table(self) -> Table:
        """Return a row for each job."""
        table = Table("job", "worker", "last line", "time left")
        for title, row in list(self.rows.items()):
            table.add_row(title, *row)
        return table


def main() -> None:
    """Spread, as the command line asks."""
    parser = argparse.ArgumentParser(
        prog="python -m photofinish.remote.spread", description=__doc__
    )
    parser.add_argument(
        "--on", default="", help="further machines, by their names, to bring back records of"
    )
    parser.add_argument(
        "--listen",
        default=HEAD,
        help="where workers reach this: tcp://0.0.0.0:8786 is from anywhere",
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
