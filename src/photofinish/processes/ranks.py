"""Which of several training processes this one is, by the environment that torchrun gives each. No torch here."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from photofinish.provenance import seconds_since_process_start

_GIVEN_BY_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_STARTED_AT = "PHOTOFINISH_STAGE_STARTED_AT_UNIX_SECONDS"


@dataclass(frozen=True)
class Rank:
    number: int
    """among all processes, from 0; 0 leads: it alone writes, tracks and talks"""
    size: int
    """how many processes there are, over all nodes"""
    local_number: int
    """among those of this node: which of its devices is used"""

    def __str__(self) -> str:
        return f"process {self.number} of {self.size}"


def own_rank() -> Rank | None:
    """None where this is no process of a group: the stage as dvc starts it."""
    if not all(name in os.environ for name in _GIVEN_BY_TORCHRUN):
        return None
    return Rank(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_RANK"]))


def note_start_of_stage(waited_seconds: float) -> None:
    """For the processes that the stage is about to start: what came before them is part of the job's time, but for
    the time it waited its turn."""
    os.environ[_STARTED_AT] = repr(time.time() - seconds_since_process_start() + waited_seconds)


def is_started_by_stage() -> bool:
    """Else torchrun was called by hand, and what this process says is all that its user hears."""
    return _STARTED_AT in os.environ and own_rank() is not None


def seconds_since_stage_start() -> float:
    """Of the job: with several processes, since the one that started them began."""
    if is_started_by_stage():
        return time.time() - float(os.environ[_STARTED_AT])
    return seconds_since_process_start()
