"""The head, which finds missing results, spreads trainings over workers, and pulls the results.

`photofinish spread` runs it, after changes are committed and pushed.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ruamel.yaml import YAML

from photofinish.config.loader import read_params
from photofinish.errors import UserError
from photofinish.files import project_root, state_folder
from photofinish.machine.fingerprint import Machine, read_machines
from photofinish.remote.worker import (
    CODE,
    DASK,
    PLAN,
    RemoteJob,
    code_version,
    committed,
    key_of,
    resources_of,
    run_job,
    stop_job,
    warn_if_open,
)
from photofinish.results.trained import DEVICE_LABELS
from photofinish.stage.locks import exclusive
from photofinish.tracking import experiment_name
from photofinish.wording import seconds

_DVC = (sys.executable, "-m", "dvc")
_HERE = "this machine"
_POLL_SECONDS = 0.5


def spread(listen: str) -> None:
    """Train missing results on the machines that params.yaml names, then write the report."""
    import dask

    dask.config.set(DASK)
    with exclusive(state_folder() / "locks", "spread", patience_seconds=0):
        jobs = {job.title: job for job in _missing(committed(Path()))}
        print(f"trainings to run: {sum(job.key is not None for job in jobs.values())}", flush=True)
        if jobs and (failed := _run_all(jobs, listen)):
            raise UserError(
                f"{len(failed)} failed, as printed above ({', '.join(failed)}). The others are in "
                f"the remote: run `photofinish spread` again to repeat only what failed"
            )
        _dvc("repro", "--pull")


def _missing(commit: str) -> list[RemoteJob]:
    _dvc("repro", "--pull", "split", "download-weights")
    _dvc("push", "--run-cache", "split", "download-weights")
    params = read_params(Path("params.yaml"))
    machines = read_machines(params.devices, Path("machines")) | {_HERE: Machine.here()}
    missing = _without_result()
    jobs = []
    for name, experiment in params.experiments.items():
        devices = [device for device in DEVICE_LABELS if f"{device}@{name}" in missing]
        if not devices:
            continue
        common = _common_fields(name, experiment.dataset, commit)
        for device in devices:
            host = json.loads((PLAN / "hosts" / f"{device}.json").read_bytes())
            if host.get("missing"):  # no accelerator, which `evaluate` records
                continue
            machine = getattr(params.devices, device).machine
            where = machine or _HERE
            jobs.append(
                RemoteJob(
                    title=f"{name} on {device}" + (f" of {machine}" if machine else ""),
                    where=where,
                    key=key_of(machines[where], device),
                    stages=(f"measure-{device}@{name}", f"train-{device}@{name}"),
                    **common,
                )
            )
        stages = (f"train-cpu@{name}", f"train-gpu@{name}", f"evaluate@{name}")
        title = f"evaluation of {name}"
        jobs.append(RemoteJob(title=title, where="any machine", key=None, stages=stages, **common))
    return jobs


def _without_result() -> set[str]:
    """Let DVC restore all results. Return which are missing, as in `cpu@digits-mlp`."""
    stages = ["measure-cpu", "measure-gpu", "train-cpu", "train-gpu"]
    # DVC runs a stage by this shell, which fails at once: results are restored, and none is made.
    restoring = os.environ | {"SHELL": "false"}
    restore = [*_DVC, "repro", "--pull", "--single-item", "--keep-going", *stages]
    subprocess.run(restore, env=restoring, capture_output=True, check=False)
    status = subprocess.run(
        [*_DVC, "status", "--json", *stages], stdout=subprocess.PIPE, check=False
    )
    if status.returncode:
        raise UserError("dvc status failed, as printed above")
    return {stage.partition("-")[2] for stage in json.loads(status.stdout)}


def _common_fields(name: str, dataset: str, commit: str) -> dict[str, Any]:
    texts = {}
    for path in PLAN.rglob("*"):
        is_needed = path.stem in (name, dataset, "budget") or path.parent.name in ("hosts", "code")
        if is_needed and path.is_file():
            texts[path.relative_to(PLAN).as_posix()] = path.read_text(encoding="utf-8")
    lock = YAML(typ="safe").load(Path("dvc.lock"))
    data = (f"split@{dataset}", "download-weights")
    lock["stages"] = {stage: lock["stages"][stage] for stage in data}
    return {
        "experiment": name,
        "dataset": dataset,
        "commit": commit,
        "plan": texts,
        # DVC reads JSON as YAML. In JSON, a checksum that looks like a number is quoted.
        "lock": json.dumps(lock),
        "tracked_in": experiment_name(project_root(), state_folder(), is_shared=True),
    }


def _dvc(*arguments: str) -> None:
    if subprocess.run([*_DVC, *arguments], check=False).returncode:
        raise UserError(f"dvc {' '.join(arguments)} failed, as printed above")


def _run_all(jobs: dict[str, RemoteJob], listen: str) -> list[str]:
    """Let workers train, then evaluate. Return the titles of failed jobs."""
    trainings = {title: job for title, job in jobs.items() if job.key}
    own = resources_of(Machine.here())
    has_own = any(job.key in own for job in trainings.values())
    with _scheduler(listen, own if has_own else None) as (client, address):
        client.set_metadata([CODE], code_version())
        failed = _run(client, trainings, address)
        lost = {jobs[title].experiment for title in failed}
        complete = {
            title: job for title, job in jobs.items() if not job.key and job.experiment not in lost
        }
        return failed + _run(client, complete, address)


def _run(client: Any, jobs: dict[str, RemoteJob], address: str) -> list[str]:
    """Run the jobs, and print the outcome of each. Return the titles of failed jobs.

    Without `retries`, because a failed job would fail again. Dask replaces lost workers.
    """
    futures = {
        title: client.submit(
            run_job, job.model_dump_json(), key=title, resources={job.key: 1} if job.key else None
        )
        for title, job in jobs.items()
    }
    failed = []
    unserved: set[str] = set()
    started_seconds = time.monotonic()
    while futures:
        for title in [title for title, future in futures.items() if future.done()]:
            future, outcome = futures.pop(title), "done"
            if future.status == "error":
                failed.append(title)
                outcome = f"failed: {future.exception()}"
            done = len(jobs) - len(futures)
            left_seconds = (time.monotonic() - started_seconds) / done * len(futures)
            left = f"{len(futures)} left, about {seconds(left_seconds)}" if futures else "all done"
            print(f"{title}: {outcome}; {left}", flush=True)
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
        keys = {None, *(key for worker in workers for key in worker["resources"])}
        lacking = {jobs[title].where for title in futures if jobs[title].key not in keys}
        for where in sorted(lacking - unserved):
            print(
                f"waiting for a worker on {where}: run `photofinish worker {address}` there. If "
                f"one is running, `photofinish machine` there shows what has changed",
                flush=True,
            )
        unserved = lacking
        time.sleep(_POLL_SECONDS)
    return failed


@contextmanager
def _scheduler(listen: str, resources: dict[str, float] | None) -> Iterator[tuple[Any, str]]:
    """Yield a Dask client and the address for workers. With `resources`, a worker runs here too."""
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
            f"can't listen at {listen}: {error}. Choose another address with --listen"
        ) from error
    warn_if_open(listen)
    with cluster, Client(cluster) as client:
        name = platform.node() if host in ("0.0.0.0", "[::]") else host  # noqa: S104
        try:
            yield client, f"{address.scheme}://{name}:{port}"
        finally:
            stop_job()
