"""The head: finds what is still to be trained, spreads it over the workers, and brings everything back.

`python -m photofinish.fleet.spread`, as `make spread` does, in a project whose changes are committed and pushed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from urllib.parse import urlsplit

import yaml

from photofinish.errors import MistakeError, UserError, run_stage
from photofinish.files import project_root, state_folder
from photofinish.fleet.jobs import PLAN, Job, clone_at, committed, environment_of
from photofinish.fleet.trainings import HERE, Connected, Task, Trainings
from photofinish.fleet.worker import DASK, HEAD, TOPIC, WORKER, key_of, require_address, require_dask, root_cause
from photofinish.locks import retired, sole_writer
from photofinish.machine.fingerprint import CpuHost, GpuHost, Machine, name_problem, read_machines
from photofinish.params.base import read_plan
from photofinish.params.networks import RECORD, InitialWeights
from photofinish.params.reader import Params, read_params
from photofinish.params.yaml_reader import YamlDocument
from photofinish.results import records
from photofinish.results.references import record_all

_NOTE_MISSING = "PHOTOFINISH_NOTE_MISSING"
"""names the file into which a training stage writes itself instead of training"""
_PARAMS, _MACHINES, _RESULTS = Path("params.yaml"), Path("machines"), Path("results")
_UNKNOWN_SECONDS = 1e9
"""of what was never trained: it may be long, so it comes first"""
_POLL_SECONDS = 0.5
_NO_DASHBOARD = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}


def spread(on: list[str], listen: str) -> None:
    """Train what is missing, here and on further machines, and write one report."""
    commit = committed(Path())
    require_remote()
    projects = [Project(Path()), *(Project.on(machine, commit) for machine in on)]
    tasks = missing_of(projects, commit)
    print(f"{len(tasks)} to be trained", flush=True)
    if tasks and (failed := _train(tasks, listen)):
        raise UserError(
            f"{len(failed)} failed, as told above ({', '.join(failed)}). What was done is in the remote: once they are "
            f"mended, `make spread` again trains those alone"
        )
    for project in reversed(projects):  # the report of the own one shows the records of the further ones
        project.bring_back()


def missing_of(projects: Iterable[Project], commit: str) -> list[Task]:
    """What no machine has done yet, each once: a further machine may be one that params.yaml names, too."""
    tasks = [task for project in projects for task in project.missing(commit)]
    return list({task.job.title: task for task in tasks}.values())


@dataclass(frozen=True)
class Project:
    """A clone of the project, trained on the machines that its params.yaml names."""

    folder: Path
    further: str | None = None
    """the machine whose results are brought back as records"""

    @classmethod
    def on(cls, machine: str, commit: str) -> Project:
        """The same experiments, in a clone of their own, on one further machine."""
        if problem := name_problem(machine, _MACHINES):
            raise MistakeError(f"ON={machine}: {problem}")
        folder = state_folder() / "further" / machine
        clone_at(Path(), folder, commit)
        params = YamlDocument(_PARAMS).value
        devices = params.get("devices") or {}
        params["devices"] = {name: {**(devices.get(name) or {}), "machine": machine} for name in ("cpu", "gpu")}
        (folder / _PARAMS).write_text(json.dumps(params, indent=2, default=str), encoding="utf-8")  # which is YAML too
        return cls(folder, machine)

    def missing(self, commit: str) -> list[Task]:
        """What neither this clone nor the remote has a result of; what they have comes into place.

        The data are made or restored here, and pushed for the workers.
        """
        expected = {name: _earlier_seconds(name) for name in self._params.experiments}
        self._dvc("repro", "--pull", "split", "download-weights")
        self._dvc("push", "--run-cache", "split", "download-weights")
        tasks = [self._task(name, device, commit, expected[name]) for name, device in self._without_result()]
        # Where the accelerator isn't there, that is all there is to record: no worker is needed for it.
        return [task for task in tasks if not (isinstance(task.host, GpuHost) and task.host.missing)]

    def _without_result(self) -> list[tuple[str, records.DeviceLabel]]:
        """DVC tells no other way whether its run-cache has a result than by putting it into place, or training."""
        note = (self.folder / ".photofinish" / "missing").resolve()
        note.parent.mkdir(exist_ok=True)
        note.write_text("", encoding="utf-8")
        command = ("repro", "--pull", "--single-item", "--keep-going", "train-cpu", "train-gpu")
        ran = self._run(*command, capture=True, **{_NOTE_MISSING: str(note)})
        noted = {tuple(line.split()) for line in note.read_text(encoding="utf-8").splitlines()}
        if ran.returncode and not noted:
            raise UserError(f"dvc {' '.join(command)} in {self.folder.resolve()} failed:\n{ran.stdout}{ran.stderr}")
        runs = product(self._params.experiments, records.DEVICE_LABELS)
        return [(name, device) for name, device in runs if (device, name) in noted]

    def _task(self, name: str, device: records.DeviceLabel, commit: str, expected_seconds: float) -> Task:
        plan = self.folder / PLAN
        host_file = plan / "hosts" / f"{device}.json"
        files = [plan / "code" / "train.json", host_file, *sorted(plan.glob(f"*/{name}.json"))]
        dataset = self._params.experiments[name].dataset
        data = {stage: self._lock["stages"][stage] for stage in (f"split@{dataset}", "download-weights")}
        weights = (self.folder / "data/weights" / name / RECORD).read_text(encoding="utf-8")
        named = getattr(self._params.devices, device).machine
        job = Job(
            title=f"{name} on {device}" + (f" of {named}" if named else ""),
            experiment=name,
            device=device,
            dataset=dataset,
            commit=commit,
            plan={file.relative_to(plan).as_posix(): file.read_text(encoding="utf-8") for file in files},
            # As JSON, which is YAML to DVC: what is text stays in quotes, also a checksum that looks like a number.
            lock=json.dumps({**self._lock, "stages": data}),
            weights=None if InitialWeights.model_validate_json(weights).published else weights,
            tracked_in=os.environ.get("MLFLOW_EXPERIMENT_NAME") or Path.cwd().name,
        )
        host = read_plan(host_file, CpuHost) if device == "cpu" else read_plan(host_file, GpuHost)
        return Task(job, named or HERE, self._machines[named or HERE], host, expected_seconds)

    def bring_back(self) -> None:
        """Every result into its place, and the report, or the records of a further machine."""
        if self.further is None:
            self._dvc("repro", "--pull")
        else:
            self._dvc("repro", "--pull", "evaluate")
            experiments, results = self.folder / PLAN / "experiments", self.folder / _RESULTS
            record_all(experiments, results, Path("reference"), self.further, from_elsewhere=True)

    @cached_property
    def _params(self) -> Params:
        return read_params(self.folder / _PARAMS)

    @cached_property
    def _machines(self) -> dict[str, Machine]:
        return {HERE: Machine.here(), **read_machines(self._params.devices, self.folder / _MACHINES)}

    @cached_property
    def _lock(self) -> dict[str, Any]:
        lock: dict[str, Any] = yaml.load((self.folder / "dvc.lock").read_bytes(), yaml.CSafeLoader)
        return lock

    def _dvc(self, *arguments: str) -> None:
        if self._run(*arguments).returncode:
            raise UserError(f"dvc {' '.join(arguments)} failed in {self.folder.resolve()}, as told above")

    def _run(self, *arguments: str, capture: bool = False, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **variables}
        if self.further:  # the user's images and mirrors lie where the project has them
            environment = {**environment_of(self.folder), "DVC_ROOT": str(project_root()), **variables}
        command = [sys.executable, "-m", "dvc", *arguments]
        return subprocess.run(command, cwd=self.folder, env=environment, capture_output=capture, text=True, check=False)


def _earlier_seconds(name: str) -> float:
    """How long it took, on the slowest device that has a result here."""
    files = _RESULTS.glob(f"{name}/*/{records.TIMED}/{records.TIMINGS}")
    found = [json.loads(file.read_bytes()).get("total_seconds", 0.0) for file in files]
    return max(found, default=0.0) or _UNKNOWN_SECONDS


def require_remote() -> None:
    """Refuse a project without a DVC remote that data and results can go through."""
    asked = [sys.executable, "-m", "dvc", "config", "--list"]
    lines = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.splitlines()
    settings = dict(line.split("=", 1) for line in lines if "=" in line)
    url = settings.get(f"remote.{settings.get('core.remote')}.url")
    if url is None or url.startswith("http"):
        problem = f"has {url} for its DVC remote, and HTTP carries no run-cache" if url else "has no default DVC remote"
        raise UserError(
            f"the project {problem}: `dvc remote add --default --local shared <folder, s3://, ssh://...>`, here and "
            f"where workers are (docs/many-machines.md)"
        )


def _train(tasks: list[Task], listen: str) -> list[str]:
    """Let workers train them; those that failed."""
    messages: SimpleQueue[dict[str, Any]] = SimpleQueue()
    with (
        scheduler_at(listen) as (client, address),
        worker_here(tasks, listen) as own_worker,
        Trainings(client, tasks, f"`make worker HEAD={address}` there") as trainings,
    ):
        client.subscribe_topic(TOPIC, lambda event: messages.put(event[1]))
        for _, message in client.get_events(TOPIC):  # of workers that were quicker
            messages.put(message)
        while True:
            while not messages.empty():
                trainings.hear(messages.get())
            workers = _connected(client)
            if not trainings.look(workers):
                return trainings.failed
            if own_worker and own_worker.poll() is not None:
                raise UserError(f"the worker here has ended: {_log()} tells why")
            time.sleep(_POLL_SECONDS)


def _connected(client: Any) -> list[Connected]:
    workers = client.scheduler_info(n_workers=-1)["workers"]
    return [Connected(facts["name"], address, frozenset(facts["resources"])) for address, facts in workers.items()]


@contextmanager
def scheduler_at(listen: str) -> Iterator[tuple[Any, str]]:
    """A client of it, and the address that workers reach it at."""
    from distributed import Client, LocalCluster

    address = urlsplit(listen)
    host, _, port = address.netloc.rpartition(":")
    place: dict[str, Any] = {"host": f"{address.scheme}://{host}", "scheduler_port": int(port)}
    try:
        cluster = LocalCluster(n_workers=0, **place, scheduler_kwargs=_NO_DASHBOARD)
    except (OSError, RuntimeError) as error:
        raise UserError(
            f"{listen} can't be listened at: {root_cause(error)}; is there another `make spread`? LISTEN=... names "
            f"another address"
        ) from error
    with cluster, Client(cluster) as client:
        name = platform.node() if host in ("0.0.0.0", "[::]") else host  # noqa: S104
        yield client, f"{address.scheme}://{name}:{port}"


@contextmanager
def worker_here(tasks: list[Task], address: str) -> Iterator[subprocess.Popen[bytes] | None]:
    """One for this machine, as long as something is to be trained on it; None where this clone has one already."""
    here = Machine.here()
    if not any(task.key == key_of(here, task.job.device) for task in tasks):
        yield None
        return
    with retired(state_folder() / "locks", WORKER) as is_free:
        pass
    if not is_free:
        print(f"the worker that is here already is to train here, too: it must be one for {address}", flush=True)
        yield None
        return
    command = [sys.executable, "-m", "photofinish.fleet.worker", address, "--end-with-parent"]
    with (
        _log().open("w", encoding="utf-8") as file,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=file, stderr=file, start_new_session=True) as process,
    ):
        print(f"a worker trains here, too: {_log()} tells what it does", flush=True)
        try:
            yield process
        finally:
            assert process.stdin is not None
            process.stdin.close()


def _log() -> Path:
    return state_folder() / "worker.log"


def main() -> None:
    """Spread, as the command line asks."""
    parser = argparse.ArgumentParser(prog="python -m photofinish.fleet.spread", description=__doc__)
    parser.add_argument("--on", default="", help="further machines, by their names, to bring back records of")
    parser.add_argument("--listen", default=HEAD, help="where workers reach this: tcp://0.0.0.0:8786 is from anywhere")
    args = parser.parse_args()
    require_dask()
    require_address(args.listen, "LISTEN")  # before data is made and pushed
    import dask

    dask.config.set(DASK)  # before anything imports distributed, which then takes over how much it logs
    with sole_writer(state_folder() / "locks", "spread", patience_seconds=0):
        spread(args.on.split(), args.listen)


if __name__ == "__main__":
    run_stage(main)
