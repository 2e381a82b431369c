"""One training as a head asks a worker for it, and what the worker starts for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from photofinish.errors import UserError
from photofinish.files import state_folder
from photofinish.fleet.clones import clone_at, environment_of
from photofinish.fleet.keys import TOPIC
from photofinish.params.base import Name
from photofinish.results.records import DeviceLabel

PLAN = Path("data/plan")
is_leaving = threading.Event()
"""set when this worker leaves its head: what it trains has not failed then, but goes to another"""
_running: list[subprocess.Popen[str]] = []
_changing = threading.Lock()


class Job(BaseModel):
    """What a worker is sent: text alone."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    title: str
    """for people, and no other job's"""
    experiment: Name
    device: DeviceLabel
    dataset: Name
    commit: str
    plan: dict[str, str]
    """the files that the head planned, by their paths below data/plan: a worker may see neither the user's images nor
    their mirror"""
    lock: str
    """of dvc.lock what tells which data those are"""
    tracked_in: str
    """the name of MLflow's experiment, for a server that both see"""

    @property
    def stage(self) -> str:
        """As DVC calls it."""
        return f"train-{self.device}@{self.experiment}"


def run_job(text: str) -> None:
    """What Dask runs, by this name: the training that `text` asks for. Nothing is given back but what went wrong."""
    from distributed import Reschedule, get_worker

    job, worker = Job.model_validate_json(text), get_worker()
    worker.log_event(TOPIC, {"name": worker.name, "began": job.title})
    clone = state_folder() / "worker"
    try:
        clone_at(Path(), clone, job.commit)
    except UserError as error:
        raise RuntimeError(str(error)) from None
    with _changing:
        if is_leaving.is_set():
            raise Reschedule
        process = _start(clone, job.tracked_in)
        _running[:] = [process]
    with process:
        assert process.stdin is not None
        assert process.stderr is not None
        with suppress(OSError, ValueError):  # it has ended already, or is to end
            process.stdin.write(f"{text}\n")  # and left open: it ends when this process does
            process.stdin.flush()
        told = process.stderr.read().strip()
    if is_leaving.is_set():
        raise Reschedule
    if process.returncode:
        raise RuntimeError(told.removeprefix("error: ") or f"it ended with status {process.returncode}")


def _start(clone: Path, tracked_in: str) -> subprocess.Popen[str]:
    environment = {"MLFLOW_EXPERIMENT_NAME": tracked_in, **environment_of(clone)}
    command, pipe = [sys.executable, "-m", "photofinish.fleet.train"], subprocess.PIPE
    return subprocess.Popen(
        command, cwd=clone, env=environment, stdin=pipe, stderr=pipe, text=True, start_new_session=True
    )


def stop_training() -> None:
    """Its checkpoints stay."""
    with _changing:
        is_leaving.set()
        for process in _running:
            assert process.stdin is not None
            process.stdin.close()


def end_with_input(and_group: bool) -> None:
    """End this process, and the group that it leads, when whoever holds the other end of standard input is gone."""

    def wait() -> None:
        while os.read(0, 1):
            pass
        if and_group:
            os.killpg(0, signal.SIGTERM)
        os._exit(1)

    threading.Thread(target=wait, name="lifeline", daemon=True).start()
