"""What a person sees of a spread: a table of machines on a terminal, and a line for each thing that happens."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

from photofinish.fleet.keys import fleet_code, key_of
from photofinish.fleet.project import HERE, Task
from photofinish.machine.fingerprint import Machine, differences
from photofinish.wording import seconds

_MOST_DIFFERENCES = 3


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
        left = f"{len(self.open)} of {len(self._states)} left"
        self._say(
            f"{title}: failed: {problem}"
            if problem
            else f"{title}: done by {' and '.join(state.workers)} in {took}; {left}"
        )

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
