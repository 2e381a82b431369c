"""What is trained where: hands trainings to workers, and takes those back whose workers are gone. A person sees it on a
board: a table of machines on a terminal, and a line for each thing that happens.

A training over several machines has a part for each. Dask itself runs what a lost worker did on any other, at once and
alone; so each part is bound to its worker, and what is lost is handed out anew from here, with all of its parts.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

from photofinish.errors import PEER_LOST
from photofinish.fleet.jobs import Part, over, run_job
from photofinish.fleet.project import HERE, Task
from photofinish.fleet.worker import fleet_code, key_of
from photofinish.machine.fingerprint import Machine, differences
from photofinish.wording import seconds

_MOST_DIFFERENCES = 3
_MOST_LOSSES = 2
"""after which a training is not handed out again: it may be what kills the workers"""


@dataclass
class _State:
    task: Task
    key: str
    what: Literal["waiting", "running", "done", "failed"] = "waiting"
    workers: tuple[str, ...] = ()
    began_seconds: float = 0.0


class Board:
    """Which training is where."""

    def __init__(self, tasks: Iterable[Task], awaited: str) -> None:
        """`awaited` tells what a machine without a worker waits for."""
        self._awaited = awaited
        self._states = {task.job.title: _State(task, key_of(task.machine, task.job.device)) for task in tasks}
        self._keys: dict[str, frozenset[str]] = {}
        self._unserved: set[str] = set()
        self.slots: dict[str, str] = {}
        """for each worker that has told of itself, where no second training may be: its machine"""
        self.left: set[str] = set()
        """the workers that said that they leave, whose trainings go on elsewhere"""
        self._console = Console()
        self._live = Live(console=self._console, get_renderable=self.table, refresh_per_second=2, transient=True)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    @property
    def open(self) -> list[str]:
        """What has neither ended nor failed."""
        return [title for title, state in self._states.items() if state.what in ("waiting", "running")]

    @property
    def failed(self) -> list[str]:
        """What has failed for good."""
        return [title for title, state in self._states.items() if state.what == "failed"]

    def key(self, title: str) -> str:
        """The resource that it needs."""
        return self._states[title].key

    def hear(self, message: dict[str, Any]) -> None:
        """Take in what a worker says of itself: that it is there, and what it is, or that it leaves."""
        name = message["name"]
        if "machine" not in message:
            self.left.add(name)
            return
        self.left.discard(name)
        if name in self.slots:
            return
        self.slots[name] = message["slot"]
        if message["code"] != fleet_code():
            self._say(f"{name} is refused: its photofinish or Dask is another; bring it to this commit there")
        else:
            self._explain(name, Machine.model_validate_json(message["machine"]))

    def _explain(self, worker: str, machine: Machine) -> None:
        """Why a worker gets nothing to do, if so."""
        mine = {state.key for state in self._states.values()} & {key_of(machine, device) for device in ("cpu", "gpu")}
        if mine:
            self._say(f"{worker} is here")
            return
        found = [(differences(state.task.host, machine), state.task.where) for state in self._states.values()]
        least, where = min(found, key=lambda differences_and_name: len(differences_and_name[0]))
        told = (
            "; ".join(least[:_MOST_DIFFERENCES]) or "what isn't used differs: write it down anew, `make machine` there"
        )
        self._say(f"{worker} is refused: it isn't {where} ({told})")

    def workers(self, keys: dict[str, frozenset[str]]) -> None:
        """Take in which workers are connected, with their resources."""
        self._keys = keys
        unserved = {problem for title in self.open if (problem := self._unserved_by(self._states[title]))}
        for problem in sorted(unserved - self._unserved):
            self._say(f"{problem}: waiting for {self._awaited} (Ctrl-C ends this)")
        self._unserved = unserved

    def _unserved_by(self, state: _State) -> str | None:
        """What machines lack for it."""
        needed, count = state.task.nodes, self._count({state.key})
        if count >= needed or (state.task.where == HERE and needed == 1):  # whose worker comes and goes with the head
            return None
        if needed == 1:
            return f"{state.task.where} has no worker"
        return f"{state.task.job.title} takes {needed} machines alike, and there are workers on {count}"

    def _count(self, keys: set[str]) -> int:
        """Of machines with workers that can train what has one of these keys."""
        return len({self.slots[name] for name, own in self._keys.items() if own & keys and name in self.slots})

    def began(self, title: str, workers: list[str]) -> None:
        """Take in that it was handed to these workers."""
        state = self._states[title]
        state.what, state.workers, state.began_seconds = "running", tuple(workers), time.monotonic()
        self._say(f"{title}: {' and '.join(workers)} {'trains' if len(workers) == 1 else 'train'} it")

    def lost(self, title: str, gone: list[str]) -> None:
        """Take in that some of its workers are gone."""
        self._states[title].what = "waiting"
        self._say(f"{title}: {' and '.join(gone)} {'is' if len(gone) == 1 else 'are'} gone; it goes to another worker")

    def ended(self, title: str, problem: str | None) -> None:
        """Take in that a training is over."""
        state = self._states[title]
        state.what = "failed" if problem else "done"
        took = seconds(time.monotonic() - state.began_seconds)
        done = f"done by {' and '.join(state.workers)} in {took}; {len(self.open)} of {len(self._states)} left"
        self._say(f"{title}: {f'failed: {problem}' if problem else done}")

    def table(self) -> Table:
        """A row a machine."""
        table = Table("machine", "workers", "running", "waiting", "done", "failed")
        for where in dict.fromkeys(state.task.where for state in self._states.values()):
            own = [state for state in self._states.values() if state.task.where == where]
            running = [f"{state.task.job.title} {self._for(state)}" for state in own if state.what == "running"]
            count = self._count({state.key for state in own})
            counts = [str(sum(state.what == what for state in own)) for what in ("waiting", "done", "failed")]
            table.add_row(where, str(count), "\n".join(running), *counts)
        return table

    def _for(self, state: _State) -> str:
        minutes, rest = divmod(int(time.monotonic() - state.began_seconds), 60)
        return f"{minutes}:{rest:02}"

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


@dataclass(frozen=True)
class Connected:
    """A worker, as the scheduler knows it."""

    name: str
    address: str
    """another one when it comes back"""
    keys: frozenset[str]
    """the resources that it has"""


@dataclass
class _Running:
    task: Task
    workers: list[Connected]
    """the first of them leads"""
    attempt: str
    futures: list[Any]
    is_given_up: bool = False


@dataclass
class Trainings:
    """All of them, until nothing waits or runs."""

    client: Any
    board: Board
    waiting: list[Task]
    _running: dict[str, _Running] = field(default_factory=dict)
    _losses: Counter[str] = field(default_factory=Counter)
    _leaders: dict[str, str] = field(default_factory=dict)
    """the machines that led an attempt before: they have its checkpoints"""

    def __post_init__(self) -> None:
        self.waiting.sort(key=lambda task: -task.expected_seconds)

    @property
    def busy(self) -> set[str]:
        """The names of the workers that train."""
        return {worker.name for running in self._running.values() for worker in running.workers}

    def look(self, connected: list[Connected]) -> bool:
        """Take in what has ended and who is gone, and hand out what can be; whether anything is left."""
        for title, running in list(self._running.items()):
            gone = [worker.name for worker in running.workers if worker not in connected]
            here = [
                future for worker, future in zip(running.workers, running.futures, strict=True) if worker in connected
            ]
            problems = [str(future.exception()) for future in here if future.status == "error"]
            if (gone or problems) and not running.is_given_up:
                running.is_given_up = True
                over(running.attempt, self.client).set()  # the others end, too
            if all(future.done() for future in here):
                del self._running[title]
                if gone:
                    self.client.cancel(running.futures)
                    self._lost(running, gone)
                else:
                    first = [problem for problem in problems if not problem.startswith(PEER_LOST)]
                    self.board.ended(title, "; ".join(dict.fromkeys(first or problems)) or None)
        for task in list(self.waiting):
            self._hand_out(task, connected)
        return bool(self.waiting or self._running)

    def _lost(self, running: _Running, gone: list[str]) -> None:
        title = running.task.job.title
        self._losses[title] += any(name not in self.board.left for name in gone)
        if self._losses[title] > _MOST_LOSSES:
            self.board.ended(title, "three workers were killed while they trained it")
        else:
            self.board.lost(title, gone)
            self.waiting.insert(0, running.task)

    def _hand_out(self, task: Task, connected: list[Connected]) -> None:
        """If as many machines are idle as it takes."""
        title, key = task.job.title, self.board.key(task.job.title)
        in_use = {self.board.slots[name] for name in self.busy}
        idle: dict[str, Connected] = {}
        for worker in connected:
            slot = self.board.slots.get(worker.name)  # None until it has told
            if slot is not None and slot not in in_use and key in worker.keys:
                idle[slot] = worker
        if len(idle) < task.nodes:
            return
        slots = sorted(idle, key=lambda slot: slot != self._leaders.get(title))[: task.nodes]
        workers, attempt = [idle[slot] for slot in slots], uuid.uuid4().hex
        futures = []
        for node, worker in enumerate(workers):
            part = Part(node=node, attempt=attempt) if task.nodes > 1 else None
            text = task.job.model_copy(update={"part": part}).model_dump_json()
            name, where = f"{title} {attempt} {node}", [worker.address]
            futures.append(self.client.submit(run_job, text, key=name, workers=where, resources={key: 1}))
        self.waiting.remove(task)
        self._running[title] = _Running(task, workers, attempt, futures)
        self._leaders[title] = slots[0]
        self.board.began(title, [worker.name for worker in workers])
