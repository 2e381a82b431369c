"""One training as a head asks a worker for it, and what the worker starts for it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict

from photofinish.errors import UserError
from photofinish.files import state_folder
from photofinish.fleet.clones import clone_at, environment_of
from photofinish.params.base import Name
from photofinish.processes import Node
from photofinish.results.records import DeviceLabel

PLAN = Path("data/plan")
_MEETING_SECONDS = 60
_GRACE_SECONDS = 5
"""in which a part may say what it failed of itself, once another one has"""
is_leaving = threading.Event()
"""set when this worker leaves its head: what it trains has not failed then, but goes to another"""
_running: list[subprocess.Popen[str]] = []
_changing = threading.Lock()


class Text(BaseModel):
    """What a worker is sent: text alone."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class Part(Text):
    """What one machine does of a training that several share."""

    node: int
    """from 0, which leads: its DVC has the result"""
    attempt: str
    """by which the parts find each other"""


class Job(Text):
    """One training."""

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
    weights: str | None
    """the record that it starts from no published weights, so that there are none to fetch"""
    tracked_in: str
    """the name of MLflow's experiment, for a server that both see"""
    part: Part | None = None
    """where several machines share it"""

    @property
    def stage(self) -> str:
        """As DVC calls it."""
        return f"train-{self.device}@{self.experiment}"


def run_job(text: str) -> None:
    """What Dask runs, by this name: the training that `text` asks for. Nothing is given back but what went wrong."""
    from distributed import get_client

    job = Job.model_validate_json(text)
    others = _Others(job.part, get_client()) if job.part else None
    try:
        _run(job, others)
    except UserError as error:
        if others:
            others.over.set()
        raise RuntimeError(str(error)) from None
    if others and others.part.node == 0:
        others.over.set()


def _run(job: Job, others: _Others | None) -> None:
    from distributed import Reschedule

    clone = state_folder() / "worker"
    node = others.meet() if others else {}
    clone_at(Path(), clone, job.commit)
    with _changing:
        if is_leaving.is_set():
            raise Reschedule
        process = _start(clone, {"MLFLOW_EXPERIMENT_NAME": job.tracked_in, **node})
        _running[:] = [process]
    if others:
        others.end_with_them(process)
    with process:
        assert process.stdin is not None
        assert process.stderr is not None
        with suppress(OSError, ValueError):  # it has ended already, or is to end
            process.stdin.write(f"{job.model_dump_json()}\n")  # and left open: it ends when this process does
            process.stdin.flush()
        told = process.stderr.read().strip()
    if is_leaving.is_set():
        raise Reschedule
    if process.returncode and (told or not others or not others.over.is_set()):  # else it was ended for others
        raise UserError(told.removeprefix("error: ") or f"it ended with status {process.returncode}")


def over(attempt: str, client: Any) -> Any:
    """The event on which all parts of a training end."""
    from distributed import Event

    return Event(f"{attempt} is over", client=client)


class _Others:
    """The other parts of a training, found through the scheduler: workers may not reach each other's Dask."""

    def __init__(self, part: Part, client: Any) -> None:
        self.part, self._client = part, client
        self.over = over(part.attempt, client)

    def meet(self) -> dict[str, str]:
        """The first says where; what each tells its training of that."""
        from distributed import Variable

        place = Variable(f"{self.part.attempt} meets at", client=self._client)
        if self.part.node == 0:
            place.set(_own_free_address(self._client.scheduler.address))
        try:
            return Node(self.part.node, place.get(timeout=_MEETING_SECONDS)).as_environment()
        except TimeoutError:
            raise UserError(f"the first machine did not say within {_MEETING_SECONDS} s where to meet") from None

    def end_with_them(self, process: subprocess.Popen[str]) -> None:
        """End this part's process once another part has ended too early, or all have."""

        def wait() -> None:
            with suppress(OSError):  # the head is gone, and so this ends as well
                self.over.wait()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_SECONDS)
            assert process.stdin is not None
            process.stdin.close()

        threading.Thread(target=wait, name="others", daemon=True).start()


def _own_free_address(head: str) -> str:
    """Where this machine can be met by those that reach the head, at a port that is free now."""
    towards = urlsplit(head)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking, socket.socket() as listening:
        asking.connect((towards.hostname, towards.port))  # which sends nothing
        listening.bind((asking.getsockname()[0], 0))
        return "{}:{}".format(*listening.getsockname())


def _start(clone: Path, variables: dict[str, str]) -> subprocess.Popen[str]:
    environment = {**variables, **environment_of(clone)}
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
