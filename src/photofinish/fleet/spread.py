"""The head: finds what is still to be trained, spreads it over the workers, and brings everything back.

`python -m photofinish.fleet.spread`, as `make spread` does, in a project whose changes are committed and pushed.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from urllib.parse import urlsplit

from photofinish.errors import UserError, run_stage
from photofinish.files import state_folder
from photofinish.fleet.cluster import Cluster, JobSettings, read_job_settings
from photofinish.fleet.jobs import committed
from photofinish.fleet.project import HERE, Project, Task
from photofinish.fleet.trainings import Board, Connected, Trainings
from photofinish.fleet.worker import DASK, HEAD, TOPIC, WORKER, key_of, require_address, require_dask, root_cause
from photofinish.locks import retired, sole_writer
from photofinish.machine.fingerprint import Machine

_POLL_SECONDS = 0.5
_NO_DASHBOARD = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}


def spread(on: list[str], listen: str, cluster_file: Path | None) -> None:
    """Train what is missing, here and on further machines, and write one report."""
    jobs = read_job_settings(cluster_file) if cluster_file else None
    commit = committed(Path())
    require_remote()
    projects = [Project(Path()), *(Project.on(machine, commit) for machine in on)]
    tasks = missing_of(projects, commit)
    print(f"{len(tasks)} to be trained", flush=True)
    if tasks and (failed := _train(tasks, listen, jobs)):
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


def _train(tasks: list[Task], listen: str, jobs: JobSettings | None) -> list[str]:
    """Let workers train them; those that failed."""
    messages: SimpleQueue[dict[str, Any]] = SimpleQueue()
    with (
        scheduler_at(listen) as (client, address),
        worker_here(tasks, listen) as own_worker,
        _cluster(tasks, address, jobs) as cluster,
        Board(tasks, "a job of SLURM's" if jobs else f"`make worker HEAD={address}` there") as board,
    ):
        client.subscribe_topic(TOPIC, lambda event: messages.put(event[1]))
        for _, message in client.get_events(TOPIC):  # of workers that were quicker
            messages.put(message)
        trainings = Trainings(client, board, tasks)
        while True:
            while not messages.empty():
                board.hear(messages.get())
            workers = _connected(client)
            board.workers({worker.name: worker.keys for worker in workers})
            if not trainings.look(workers):
                return board.failed
            if cluster:
                left = set(board.open)
                wanted = sum(task.nodes for task in tasks if task.where != HERE and task.job.title in left)
                cluster.keep(wanted, {worker.name for worker in workers}, trainings.busy)
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
    if not any(key_of(task.machine, task.job.device) == key_of(here, task.job.device) for task in tasks):
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


def _cluster(tasks: list[Task], address: str, jobs: JobSettings | None) -> AbstractContextManager[Cluster | None]:
    if jobs is None:
        return nullcontext()
    if all(task.where == HERE for task in tasks):
        print("all of that is this machine's: no job is submitted (devices.gpu: {machine: ...} or ON=...)", flush=True)
    require_jobs(tasks, jobs)
    return Cluster(jobs, address, tasks[0].job.commit)


def require_jobs(tasks: list[Task], jobs: JobSettings) -> None:
    """Refuse a training that takes more machines than there will be jobs, which would wait for ever."""
    for task in tasks:
        if task.where != HERE and task.nodes > jobs.jobs:
            takes = f"{task.job.title} takes {task.nodes} machines at once"
            raise UserError(f"{takes}: the file of jobs has jobs: {jobs.jobs}")


def _log() -> Path:
    return state_folder() / "worker.log"


def main() -> None:
    """Spread, as the command line asks."""
    parser = argparse.ArgumentParser(prog="python -m photofinish.fleet.spread", description=__doc__)
    parser.add_argument("--on", default="", help="further machines, by their names, to bring back records of")
    parser.add_argument("--listen", default=HEAD, help="where workers reach this: tcp://0.0.0.0:8786 is from anywhere")
    parser.add_argument("--cluster", type=Path, help="the file that says what jobs of SLURM's are to be workers")
    args = parser.parse_args()
    require_dask()
    require_address(args.listen, "LISTEN")  # before data is made and pushed
    import dask

    dask.config.set(DASK)  # before anything imports distributed, which then takes over how much it logs
    with sole_writer(state_folder() / "locks", "spread", patience_seconds=0):
        spread(args.on.split(), args.listen, args.cluster)


if __name__ == "__main__":
    run_stage(main)
