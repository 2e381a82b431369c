"""A worker, which runs a head's jobs one by one and pushes each result to DVC's remote.

`photofinish worker tcp://head:8786` serves one head after another. Each job has a process,
`python -m photofinish.remote.worker`, in a clone, which ends when its standard input is closed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from configparser import ConfigParser
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit

from photofinish.config.base import Name, Record
from photofinish.errors import TerminatedError, UserError
from photofinish.files import sha256_of_bytes, state_folder
from photofinish.git import git, git_succeeds
from photofinish.machine.fingerprint import Machine
from photofinish.planning.source_code import module_code
from photofinish.results.trained import DEVICE_LABELS, DeviceLabel
from photofinish.stage.locks import exclusive
from photofinish.stage.process import run_stage

PLAN = Path("data/plan")
_NO_INPUT_OF_A_STAGE = ("dvc.lock", "metrics", "plots", "reference")
_LOCK = Path("dvc.lock")
_LAST_LINES = 5
_running: list[subprocess.Popen[str]] = []
is_leaving = threading.Event()
"""Set when this worker leaves its head. The scheduler then gives its job to another worker."""
CODE = "photofinish"
"""Key of the head's `code_version` in the scheduler's metadata."""
_LOGGERS = ("distributed", "distributed.client", "distributed.gc")
DASK = {
    "distributed.worker.profile.enabled": False,  # it would slow timed trainings down
    "distributed.scheduler.allowed-failures": 2,
    "distributed.comm.timeouts.tcp": "20s",  # until a cut network is noticed
    "distributed.logging": dict.fromkeys(_LOGGERS, logging.CRITICAL + 1),
}
_CLOSED = ("tls://", "tcp://127.", "tcp://localhost:", "tcp://[::1]:")
_RETRY_SECONDS = 2.0


class RemoteJob(Record):
    """Stages that a worker runs, and the files that its clone lacks."""

    title: str
    where: str
    """Name of the machine, or `this machine`."""
    key: str | None
    """Dask resource of the machine. None for an evaluation, which any worker may run."""
    stages: tuple[str, ...]
    """Names of DVC's stages. If the remote has a stage's result, it is restored."""
    experiment: Name
    dataset: Name
    commit: str
    plan: dict[str, str]
    """Files below data/plan, which only the head's `plan` writes."""
    lock: str
    """Entries of dvc.lock about the data, as JSON."""
    tracked_in: str
    """Name of MLflow's experiment."""


def run_job(text: str) -> None:
    """Run the job on this worker. Raise RuntimeError with the stage's error if it fails."""
    from distributed import Reschedule

    job = RemoteJob.model_validate_json(text)
    clone = state_folder() / "worker"
    with exclusive(state_folder() / "locks", "worker", patience_seconds=float("inf")):
        clone_at(Path(), clone, job.commit)
        environment = {
            key: value for key, value in os.environ.items() if not key.startswith("DVC_")
        }
        environment["MLFLOW_EXPERIMENT_NAME"] = job.tracked_in
        folders = {"PATH": Path(sys.executable).parent, "PYTHONPATH": (clone / "src").resolve()}
        for key, folder in folders.items():
            environment[key] = os.pathsep.join(filter(None, [str(folder), environment.get(key)]))
        errors, last = [], deque[str](maxlen=_LAST_LINES)
        with subprocess.Popen(
            [sys.executable, "-m", "photofinish.remote.worker"],
            cwd=clone,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            _running[:] = [process]
            process.stdin.write(f"{text}\n")
            process.stdin.flush()  # the pipe stays open
            for line in process.stdout:
                print(line, end="", flush=True)
                last.append(line.strip())
                if line.startswith("error: "):
                    errors.append(line.strip().removeprefix("error: "))
    if is_leaving.is_set():
        raise Reschedule
    if process.returncode:
        problem = "; ".join(errors) or " ".join(filter(None, last))
        raise RuntimeError(problem or f"its process ended with status {process.returncode}")


def stop_job() -> None:
    """End this worker's job, whose checkpoints remain."""
    is_leaving.set()
    for process in _running:
        if process.stdin:
            process.stdin.close()


def main() -> None:
    """Pull the data, run the stages, and push their results, in a clone at the job's commit."""
    from dvc.cli import main as dvc

    job = RemoteJob.model_validate_json(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_input, name="lifeline", daemon=True).start()
    for name, text in job.plan.items():
        (PLAN / name).parent.mkdir(parents=True, exist_ok=True)
        (PLAN / name).write_text(text, encoding="utf-8")
    _LOCK.write_text(job.lock, encoding="utf-8")
    data = [f"data/splits/{job.dataset}", f"data/weights/{job.experiment}"]
    if dvc(["pull", "--force", *data]) or dvc(["repro", "--pull", "--single-item", *job.stages]):
        sys.exit(1)
    if dvc(["push", "--run-cache", *job.stages]):
        print("error: `dvc push` failed; the result stays on this machine", flush=True)
        sys.exit(1)


def _end_with_input() -> None:
    """End this process and its children once the worker closes the input or has ended."""
    while os.read(0, 1):
        pass
    os.killpg(0, signal.SIGTERM)


def _git(folder: Path, *arguments: str) -> str:
    # Without this, git would treat an unfinished clone as part of the project around it.
    return git(folder, *arguments, GIT_CEILING_DIRECTORIES=str(folder.resolve().parent))


def committed(folder: Path) -> str:
    """Return the project's commit. Raise UserError if there are uncommitted changes."""
    inputs = (".", *(f":!{path}" for path in _NO_INPUT_OF_A_STAGE))
    if changed := _git(folder, "status", "--porcelain", "--", *inputs):
        raise UserError(f"commit and push these changes, then run this again\n{changed}")
    return _git(folder, "rev-parse", "HEAD")


def clone_at(source: Path, folder: Path, commit: str) -> None:
    """Check out a commit in `folder`, a clone of `source` that shares its DVC remotes and cache."""
    source = source.resolve()
    if not (folder / ".git").is_dir():
        _git(source, "clone", "--quiet", "--no-checkout", str(source), str(folder.resolve()))
    origins = [str(source)]
    if "origin" in _git(source, "remote").split():
        origins.append(_git(source, "remote", "get-url", "origin"))
    is_there = ("-C", str(folder), "cat-file", "-e", f"{commit}^{{commit}}")
    for origin in origins:
        if not git_succeeds(*is_there):
            refs = ("+HEAD:refs/spread/HEAD", "+refs/heads/*:refs/spread/*")
            _git(folder, "fetch", "--quiet", origin, *refs)
    if not git_succeeds(*is_there):
        problem = f"the commit {commit[:12]} is not in {origins[-1]}"
        raise UserError(f"{problem}: `git push` it, then run `photofinish spread` again")
    if not (folder / "dvc.yaml").is_file() or _git(folder, "rev-parse", "HEAD") != commit:
        _git(folder, "checkout", "--quiet", "--force", "--detach", commit)
    _share_dvc(source / ".dvc", folder / ".dvc")


def _share_dvc(own: Path, cloned: Path) -> None:
    """Write the project's remotes and cache to the clone's settings, with absolute paths."""
    settings = ConfigParser(interpolation=None)
    settings.read_dict({"cache": {"dir": "cache"}})
    settings.read([own / "config", own / "config.local"], encoding="utf-8")
    for section in settings.sections():
        for key in {"url", "dir"} & set(settings[section]):
            location = settings[section][key]
            if "://" not in location and not location.startswith("~"):
                settings[section][key] = str((own / location).resolve())
    with (cloned / "config.local").open("w", encoding="utf-8") as file:
        settings.write(file)


def code_version() -> str:
    """Return a hash of Dask's version and of the code that head and worker must share."""
    code = module_code(__name__).sha256
    return sha256_of_bytes(f"{code} {metadata.version('distributed')}".encode())[:16]


def key_of(machine: Machine, device: DeviceLabel) -> str:
    """Return the Dask resource of machines that are equal for this device."""
    if device == "cpu":
        software = machine.software.of_cpu()
        machine = machine.model_copy(update={"accelerators": {}, "software": software})
    return f"{device}-{sha256_of_bytes(machine.model_dump_json().encode())[:16]}"


def resources_of(machine: Machine) -> dict[str, float]:
    return {key_of(machine, device): 1 for device in DEVICE_LABELS}


def warn_if_open(address: str) -> None:
    """Print a line if other machines may reach this address, and it needs no certificate."""
    if not address.startswith(_CLOSED):
        print(
            f"anyone who can reach {address} can run any program here as this user: keep it in a "
            f"private network, or use certificates and tls://",
            flush=True,
        )


async def _work(head: str, machine: Machine) -> None:
    """Run a head's jobs until the head has ended."""
    from distributed import Client, Worker
    from distributed.comm import get_local_address_for

    this = asyncio.current_task()
    assert this is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
    async with Client(head, asynchronous=True, set_as_default=False, timeout="5s") as client:
        if await client.get_metadata([CODE]) != code_version():
            raise UserError(
                "the coordinator has another version of photofinish or Dask: `git pull`, then "
                "start this worker again"
            )
    is_leaving.clear()
    async with Worker(
        head,
        nthreads=1,
        resources=resources_of(machine),
        dashboard_address="127.0.0.1:0",
        memory_limit=0,
        local_directory=str(state_folder() / "dask"),
        # Without it, Dask listens on all addresses, also if the head is on this machine.
        host=urlsplit(get_local_address_for(head)).netloc,
    ) as worker:
        print(f"connected to {head}", flush=True)
        warn_if_open(worker.address)
        try:
            await worker.finished()
        finally:
            stop_job()


def serve(head: str) -> None:
    import dask

    dask.config.set(DASK)
    machine = Machine.here()
    print(f"waiting for `photofinish spread` at {head}", flush=True)
    while True:
        try:
            asyncio.run(_work(head, machine))
            print("`photofinish spread` has ended: waiting for the next one", flush=True)
        except asyncio.CancelledError:
            raise TerminatedError("terminated") from None
        except (OSError, KeyError):  # no head yet, or it has not named its code yet
            pass
        time.sleep(_RETRY_SECONDS)


if __name__ == "__main__":
    run_stage(main)
