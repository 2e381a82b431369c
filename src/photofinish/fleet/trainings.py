"""What is trained where: hands trainings to workers, and takes those back whose workers are gone.

A training over several machines has a part for each. Dask itself runs what a lost worker did on any other, at once and
alone; so each part is bound to its worker, and what is lost is handed out anew from here, with all of its parts.
"""

from __future__ import annotations

import uuid
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from photofinish.errors import PEER_LOST
from photofinish.fleet.board import Board
from photofinish.fleet.jobs import Part, over, run_job
from photofinish.fleet.project import Task

_MOST_LOSSES = 2
"""after which a training is not handed out again: it may be what kills the workers"""


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
                self.client.cancel(running.futures)
                if gone:
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
