"""What is trained where: hands trainings to workers, and takes those back whose workers are gone. A person sees a line
for each thing that happens, and on a terminal a table of machines.

A training over several machines has a part for each. Dask itself runs what a lost worker did on any other, at once and
alone; so each part is bound to its worker, and what is lost is handed out anew from here, with all of its parts.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

from photofinish.errors import PEER_LOST
from photofinish.fleet.jobs import Job, Part, over, run_job
from photofinish.fleet.worker import fleet_code, key_of
from photofinish.machine.fingerprint import CpuHost, GpuHost, Machine, differences
from photofinish.results.records import DEVICE_LABELS
from photofinish.wording import seconds

HERE = "this machine"
_MOST_DIFFERENCES = 3
_MOST_LOSSES = 2
"""after which a training is not handed out again: it may be what kills the workers"""


@dataclass(frozen=True)
class Task:
    """A training that no machine has done yet."""

    job: Job
    where: str
    """the name of its machine, or HERE"""
    machine: Machine
    host: CpuHost | GpuHost
    expected_seconds: float
    """by earlier trainings of the experiment on whatever device"""

    nodes = 1

    @cached_property
    def key(self) -> str:
        """The resource of Dask's that its machines have."""
        return key_of(self.machine, self.job.device)


@dataclass(frozen=True)
class Connected:
    """A worker, as the scheduler knows it."""

    name: str
    address: str
    """another one when it comes back"""
    keys: frozenset[str]
    """the resources that it has"""


@dataclass
class _Training:
    """How a task fares."""

    task: Task
    state: Literal["waiting", "running", "done", "failed"] = "waiting"
    workers: list[Connected] = field(default_factory=list)
    """of its last attempt, the first of which leads"""
    attempt: str = ""
    futures: list[Any] = field(default_factory=list)
    is_given_up: bool = False
    """the attempt, of which some parts still end"""
    began_seconds: float = 0.0
    leader: str | None = None
    """the machine that led the last attempt: it has the checkpoints"""
    losses: int = 0

    @property
    def title(self) -> str:
        return self.task.job.title


class Trainings:
    """All of them, until none waits or runs."""

    def __init__(self, client: Any, tasks: Iterable[Task], awaited: str) -> None:
        """`client` is Dask's; `awaited` tells what a machine without a worker waits for."""
        self._client, self._awaited = client, awaited
        self._all = [_Training(task) for task in tasks]
        self._connected: list[Connected] = []
        self._slots: dict[str, str] = {}
        """for each worker that has told of itself, where no second training may be: its machine"""
        self._left: set[str] = set()
        """the workers that said that they leave, whose trainings go on elsewhere"""
        self._unserved: set[str] = set()
        self._console = Console()
        self._live = Live(console=self._console, get_renderable=self.table, refresh_per_second=2, transient=True)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    @property
    def open(self) -> list[Task]:
        """What has neither ended nor failed."""
        return [training.task for training in self._in("waiting", "running")]

    @property
    def failed(self) -> list[str]:
        """What has failed for good."""
        return [training.title for training in self._in("failed")]

    @property
    def busy(self) -> set[str]:
        """The names of the workers that train."""
        return {worker.name for training in self._in("running") for worker in training.workers}

    def _in(self, *states: str) -> list[_Training]:
        return [training for training in self._all if training.state in states]

    def hear(self, message: dict[str, Any]) -> None:
        """Take in what a worker says of itself: that it is there, and what it is, or that it leaves."""
        name = message["name"]
        if "machine" not in message:
            self._left.add(name)
            return
        self._left.discard(name)
        if name in self._slots:
            return
        self._slots[name] = message["slot"]
        if message["code"] != fleet_code():
            self._say(f"{name} is refused: its photofinish or Dask is another; bring it to this commit there")
            return
        machine = Machine.model_validate_json(message["machine"])
        if {training.task.key for training in self._all} & {key_of(machine, device) for device in DEVICE_LABELS}:
            self._say(f"{name} is here")
            return
        found = [(differences(training.task.host, machine), training.task.where) for training in self._all]
        least, where = min(found, key=lambda differences_and_name: len(differences_and_name[0]))
        told = "; ".join(least[:_MOST_DIFFERENCES])
        told = told or "what isn't used differs: write it down anew, `make machine` there"
        self._say(f"{name} is refused: it isn't {where} ({told})")

    def look(self, connected: list[Connected]) -> bool:
        """Take in what has ended and who is gone, and hand out what can be; whether anything is left."""
        self._connected = connected
        self._tell_unserved()
        for training in self._in("running"):
            self._look_after(training)
        free = self._free()
        # What was begun before has checkpoints, and a machine's last training should not be a long one.
        for training in sorted(self._in("waiting"), key=lambda one: (not one.attempt, -one.task.expected_seconds)):
            idle = {self._slots[worker.name]: worker for worker in free if training.task.key in worker.keys}
            if len(idle) >= training.task.nodes:
                self._hand_out(training, idle)
                free = self._free()
        return bool(self.open)

    def _free(self) -> list[Connected]:
        """The workers that have told of themselves, on machines where nothing is trained."""
        in_use = {self._slots[name] for name in self.busy}
        told = [worker for worker in self._connected if worker.name in self._slots]
        return [worker for worker in told if self._slots[worker.name] not in in_use]

    def _tell_unserved(self) -> None:
        """What machines lack for a training, once."""
        unserved = set()
        for task in self.open:
            needed, count = task.nodes, self._count_machines({task.key})
            if needed == 1 and task.where == HERE:  # whose worker comes and goes with the head
                continue
            if needed == 1 and not count:
                unserved.add(f"{task.where} has no worker")
            elif count < needed:
                unserved.add(f"{task.job.title} takes {needed} machines alike, and there are workers on {count}")
        for problem in sorted(unserved - self._unserved):
            self._say(f"{problem}: waiting for {self._awaited} (Ctrl-C ends this)")
        self._unserved = unserved

    def _count_machines(self, keys: set[str]) -> int:
        """With workers that can train what has one of these keys."""
        able = (worker.name for worker in self._connected if worker.keys & keys)
        return len({self._slots[name] for name in able if name in self._slots})

    def _look_after(self, training: _Training) -> None:
        gone = [worker for worker in training.workers if worker not in self._connected]
        parts = zip(training.workers, training.futures, strict=True)
        here = [future for worker, future in parts if worker in self._connected]
        problems = [str(future.exception()) for future in here if future.status == "error"]
        if (gone or problems) and not training.is_given_up:
            training.is_given_up = True
            over(training.attempt, self._client).set()  # the others end, too
        if not all(future.done() for future in here):
            return
        if gone:
            self._client.cancel(training.futures)
            self._lost(training, gone)
        else:
            first = [problem for problem in problems if not problem.startswith(PEER_LOST)]
            self._ended(training, "; ".join(dict.fromkeys(first or problems)) or None)

    def _lost(self, training: _Training, gone: list[Connected]) -> None:
        training.losses += any(worker.name not in self._left for worker in gone)
        if training.losses > _MOST_LOSSES:
            self._ended(training, "three workers were killed while they trained it")
            return
        training.state = "waiting"
        are = "is" if len(gone) == 1 else "are"
        self._say(f"{training.title}: {_names(gone)} {are} gone; it goes to another worker")

    def _ended(self, training: _Training, problem: str | None) -> None:
        training.state = "failed" if problem else "done"
        by, took = _names(training.workers), seconds(time.monotonic() - training.began_seconds)
        done = f"done by {by} in {took}; {len(self.open)} of {len(self._all)} left"
        self._say(f"{training.title}: {f'failed: {problem}' if problem else done}")

    def _hand_out(self, training: _Training, idle: dict[str, Connected]) -> None:
        """To as many machines as it takes, of those that are idle, by their slots."""
        task = training.task
        slots = sorted(idle, key=lambda slot: slot != training.leader)[: task.nodes]
        training.workers, training.attempt, training.futures = [idle[slot] for slot in slots], uuid.uuid4().hex, []
        for node, worker in enumerate(training.workers):
            part = Part(node=node, attempt=training.attempt) if task.nodes > 1 else None
            text = task.job.model_copy(update={"part": part}).model_dump_json()
            name, where = f"{training.title} {training.attempt} {node}", [worker.address]
            training.futures.append(
                self._client.submit(run_job, text, key=name, workers=where, resources={task.key: 1})
            )
        training.state, training.leader, training.is_given_up = "running", slots[0], False
        training.began_seconds = time.monotonic()
        trains = "trains" if task.nodes == 1 else "train"
        self._say(f"{training.title}: {_names(training.workers)} {trains} it")

    def table(self) -> Table:
        """A row a machine."""
        table = Table("machine", "workers", "running", "waiting", "done", "failed")
        for where in dict.fromkeys(training.task.where for training in self._all):
            own = [training for training in self._all if training.task.where == where]
            count = self._count_machines({training.task.key for training in own})
            running = []
            for training in own:
                if training.state == "running":
                    minutes, rest = divmod(int(time.monotonic() - training.began_seconds), 60)
                    running.append(f"{training.title} {minutes}:{rest:02}")
            counts = [str(sum(one.state == state for one in own)) for state in ("waiting", "done", "failed")]
            table.add_row(where, str(count), "\n".join(running), *counts)
        return table

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


def _names(workers: list[Connected]) -> str:
    return " and ".join(worker.name for worker in workers)
