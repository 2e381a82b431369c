"""Both sides of the gate: files of a commit, and the process that trains there."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from photofinish.errors import UserError
from photofinish.gate.change import Rounds, Turn
from photofinish.results.trained import DeviceLabel

_TURN_SECONDS = 0.05
"""Least time of a turn, by hand. Most other programs run longer, and so slow both sides."""
_FEWEST_ROUNDS, _ENOUGH_ROUNDS, _MOST_SECONDS = 3, 30, 8.0
"""Limits on the rounds of a pair of processes, by hand: pairs differ more than a median of 30."""


@dataclass(frozen=True)
class Checkout:
    """Files of a commit or of the working tree."""

    top: Path
    folder: Path
    """Folder of params.yaml."""
    title: str


@dataclass(frozen=True)
class TimedTraining:
    """Experiment on a device, with the working tree's data and weights."""

    name: str
    device: DeviceLabel
    data: Path
    weights: Path

    def __str__(self) -> str:
        return f"{self.name} on the {self.device.upper()}"


@contextmanager
def start_side(own: Checkout, work: Checkout, training: TimedTraining) -> Iterator[Side]:
    """Start a side's process, which ends with this block."""
    arguments = [training.name, training.device, str(training.data), str(training.weights)]
    if own.top != work.top:
        arguments.append(str(work.top))
    paths = []
    # The project's folders on Python's path, as folders of a commit.
    for entry in filter(None, sys.path):
        folder = Path(entry).resolve()
        if folder.is_relative_to(work.top) and folder.name != "site-packages":
            paths.append(str(own.top / folder.relative_to(work.top)))
    paths += filter(None, [os.environ.get("PYTHONPATH")])
    process = subprocess.Popen(
        [sys.executable, "-m", "photofinish.gate.side", *arguments],
        cwd=own.folder,
        env=os.environ | ({"PYTHONPATH": os.pathsep.join(paths)} if paths else {}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Side(f"{training} ({own.title})", process)
    except BaseException:
        process.terminate()
        raise
    finally:
        process.communicate()


class Side:
    def __init__(self, what: str, process: subprocess.Popen[str]) -> None:
        self._what, self._process = what, process

    def ask(self, line: str) -> None:
        assert self._process.stdin
        with suppress(BrokenPipeError):  # `answer` says so
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()

    def answer(self) -> str:
        """Return the process's next line."""
        assert self._process.stdout
        if not (line := self._process.stdout.readline()):
            raise UserError(
                f"{self._what} did not train, so there is nothing to compare: see above"
            )
        return line.strip()

    def take_turn(self, steps: int) -> Turn:
        """Train for a turn of so many steps."""
        self.ask(str(steps))
        seconds, epoch_seconds, trained, sha256 = self.answer().split()
        return Turn(float(seconds), float(epoch_seconds), int(trained), sha256)


def take_turns(old: Side, new: Side, turns: list[int], number: int) -> Rounds:
    """Time both sides in turns, so that each rests while the other trains.

    A process's second turn in a row would be slower, because it has used up its time on a core. The
    first pair appends to `turns` the steps of its warm-up turns, which grow until a turn is long
    enough. The next pairs repeat them, so that their losses can be compared.
    """
    for side in (old, new):
        side.ask("")  # prepare both at once, as torch takes seconds to import
    old_epoch_steps, new_epoch_steps = (int(side.answer()) for side in (old, new))
    rounds = Rounds()
    for steps in turns:
        rounds.old.append(old.take_turn(steps))
        rounds.new.append(new.take_turn(steps))
        if number == 0 and rounds.old[-1].seconds < _TURN_SECONDS:
            turns.append(2 * steps)
    rounds.warm_up_turns = len(turns)
    new_steps = max(1, round(turns[-1] * new_epoch_steps / old_epoch_steps))
    sides = [(old, turns[-1], rounds.old), (new, new_steps, rounds.new)]
    if number % 2:
        sides.reverse()
    deadline = time.monotonic() + _MOST_SECONDS
    while (count := len(rounds.epoch_seconds)) < _FEWEST_ROUNDS or (
        count < _ENOUGH_ROUNDS and time.monotonic() < deadline
    ):
        for side, steps, taken in sides:
            taken.append(side.take_turn(steps))
    return rounds
