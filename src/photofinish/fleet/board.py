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
    worker: str = ""
    began_seconds: float = 0.0


class Board:
    """Which training is where."""

    def __init__(self, tasks: Iterable[Task], awaited: str) -> None:
        """`awaited` tells what a machine without a worker waits for."""
        self._awaited = awaited
        self._states = {task.job.title: _State(task, key_of(task.machine, task.job.device)) for task in tasks}
        self._keys: dict[str, set[str]] = {}
        self._unserved: set[str] = set()
        self._heard: set[str] = set()
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

    def idle(self, handed_out: Iterable[str]) -> set[str]:
        """The workers that have nothing to do, once each of these trainings has one.

        Dask is given no more than they can begin: what waits at one worker stays there though others are idle.
        """
        idle = self._keys.keys() - {state.worker for state in self._states.values() if state.what == "running"}
        for title in handed_out:
            state = self._states[title]
            taken = state.what == "waiting" and next((name for name in idle if state.key in self._keys[name]), None)
            idle -= {taken}
        return idle

    def key(self, title: str) -> str:
        """The resource that it needs."""
        return self._states[title].key

    def hear(self, message: dict[str, Any]) -> None:
        """Take in what a worker says of itself, or of a training that it begins."""
        if "began" in message:
            state = self._states[message["began"]]
            if state.what in ("done", "failed"):  # which was quicker to be told
                return
            state.what, state.worker, state.began_seconds = "running", message["name"], time.monotonic()
            self._say(f"{message['began']}: {state.worker} trains it")
        elif message["name"] in self._heard:
            return
        elif message["code"] != fleet_code():
            self._say(
                f"{message['name']} is refused: its photofinish or Dask is another; bring it to this commit there"
            )
        else:
            self._explain(message["name"], Machine.model_validate_json(message["machine"]))
        self._heard.add(message["name"])

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

    def workers(self, keys: dict[str, set[str]]) -> None:
        """Take in which workers are connected, with their resources."""
        for title, state in self._states.items():
            if state.what == "running" and state.worker not in keys and state.worker in self._keys:
                state.what = "waiting"
                self._say(f"{title}: {state.worker} is gone; it goes to another worker")
        self._keys = keys
        served = set().union(*keys.values())
        unserved = {state.task.where for title in self.open if (state := self._states[title]).key not in served}
        for where in sorted(unserved - self._unserved - {HERE}):  # whose worker comes and goes with the head
            self._say(f"{where} has no worker: waiting for {self._awaited} (Ctrl-C ends this)")
        self._unserved = unserved

    def ended(self, title: str, problem: str | None) -> None:
        """Take in that a training is over."""
        state = self._states[title]
        state.what = "failed" if problem else "done"
        took = seconds(time.monotonic() - state.began_seconds)
        left = f"{len(self.open)} of {len(self._states)} left"
        self._say(f"{title}: failed: {problem}" if problem else f"{title}: done by {state.worker} in {took}; {left}")

    def table(self) -> Table:
        """A row a machine."""
        table = Table("machine", "workers", "running", "waiting", "done", "failed")
        for where in dict.fromkeys(state.task.where for state in self._states.values()):
            own = [state for state in self._states.values() if state.task.where == where]
            running = [f"{state.task.job.title} {self._for(state)}" for state in own if state.what == "running"]
            count = sum(bool(keys & {state.key for state in own}) for keys in self._keys.values())
            counts = [str(sum(state.what == what for state in own)) for what in ("waiting", "done", "failed")]
            table.add_row(where, str(count), "\n".join(running), *counts)
        return table

    def _for(self, state: _State) -> str:
        minutes, rest = divmod(int(time.monotonic() - state.began_seconds), 60)
        return f"{minutes}:{rest:02}"

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)
