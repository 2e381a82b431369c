"""Both sides of the gate: files of a commit, an environment, and the process that trains there."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from photofinish.errors import UserError
from photofinish.regressions.change import Losses, Rounds
from photofinish.results.records import DeviceLabel

_TURN_SECONDS = 0.05
"""Least time of a turn. Most other programs run for longer, and so slow both sides."""
_FEWEST_ROUNDS, _ENOUGH_ROUNDS, _MOST_SECONDS = 3, 12, 8.0
"""Limits on the rounds of a pair of processes. The error of fewer rounds is not known."""
_ERROR = 0.02
"""Standard error of a pair's ratio at which rounds end."""


@dataclass(frozen=True)
class Checkout:
    """Files of a commit or of the working tree, and the environment that trains there."""

    top: Path
    folder: Path
    """Folder of params.yaml."""
    title: str
    python: str = sys.executable
    package: Path | None = None
    """Folder with this photofinish, for an environment that may have another or none."""


@dataclass(frozen=True)
class TimedTraining:
    """Experiment on a device, with the working tree's data and weights."""

    name: str
    device: DeviceLabel
    data: Path
    weights: Path

    def __str__(self) -> str:
        return f"{self.name} on the {self.device.upper()}"


class TrainingFailedError(UserError):
    """Failure of a side, whose process printed why."""


class Side:
    """Process that trains one side in turns."""

    def __init__(self, own: Checkout, work: Checkout, training: TimedTraining) -> None:
        self.steps_per_epoch = self.least_steps = 1
        self.losses: list[Losses] = []
        self._what = f"{training} ({own.title})"
        arguments = [training.name, training.device]
        arguments += ["--data", str(training.data), "--weights", str(training.weights)]
        environment = dict(os.environ)
        paths: list[str] = []
        if own.top != work.top:
            arguments += ["--not-from", str(work.top)]
            paths += _moved_path(work.top, own.top)
        if own.package:
            paths.insert(0, str(own.package))
        if paths:
            paths += filter(None, [environment.get("PYTHONPATH")])
            environment["PYTHONPATH"] = os.pathsep.join(paths)
        self._process = subprocess.Popen(
            [own.python, "-m", "photofinish.regressions.side", *arguments],
            cwd=own.folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind:
            self._process.terminate()
        self._process.communicate()

    def answer(self) -> str:
        """Return the process's next line."""
        assert self._process.stdout
        if not (line := self._process.stdout.readline()):
            raise self._failure()
        return line.strip()

    def prepare(self) -> None:
        """Start to prepare the training, after reading its identity."""
        self._say("")

    def wait_until_prepared(self) -> None:
        """Wait until the training is prepared."""
        self.steps_per_epoch, self.least_steps = map(int, self.answer().split())

    def take_turn(self, steps: int) -> float:
        """Train `steps` steps, and return how long an epoch takes at their speed."""
        self._say(str(steps))
        took_seconds, trained, sha256 = self.answer().split()
        self.losses.append(Losses(int(trained), sha256))
        return float(took_seconds) / steps * self.steps_per_epoch

    def _say(self, line: str) -> None:
        assert self._process.stdin
        try:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise self._failure() from error

    def _failure(self) -> TrainingFailedError:
        return TrainingFailedError(
            f"{self._what} did not train, so that there is nothing to compare"
        )


def take_turns(old: Side, new: Side, warm_up: list[int], *, new_first: bool) -> Rounds:
    """Time both sides in turns, so that each rests while the other trains.

    A process's second turn in a row would be slower, because it has used up its time on a core. The
    first pair fills `warm_up` with the steps of its first turns, and the next pairs repeat them, so
    that their losses can be compared.
    """
    for side in (old, new):
        side.prepare()  # both at once, as torch takes seconds to import
    for side in (old, new):
        side.wait_until_prepared()
    rounds = Rounds()
    rounds.old_losses, rounds.new_losses = old.losses, new.losses
    if warm_up:
        for steps in warm_up:
            old.take_turn(steps)
            new.take_turn(steps)
    else:
        warm_up += _warm_up(old, new)
    steps = warm_up[-1]
    if steps > old.steps_per_epoch - 2:  # the first step is not timed, and the last may be smaller
        steps = -(-steps // old.steps_per_epoch) * old.steps_per_epoch
    new_steps = max(1, round(steps * new.steps_per_epoch / old.steps_per_epoch))
    if steps < old.steps_per_epoch:
        new_steps = max(1, min(new_steps, new.steps_per_epoch - 2))
    deadline = time.monotonic() + _MOST_SECONDS
    sides = [(old, steps, rounds.old_seconds), (new, new_steps, rounds.new_seconds)]
    if new_first:
        sides.reverse()
    while (count := len(rounds.old_seconds)) < _FEWEST_ROUNDS or (
        (count < _ENOUGH_ROUNDS or rounds.error > _ERROR) and time.monotonic() < deadline
    ):
        for side, side_steps, epoch_seconds in sides:
            epoch_seconds.append(side.take_turn(side_steps))
    return rounds


def _warm_up(old: Side, new: Side) -> list[int]:
    """Take turns of growing numbers of steps until they are long enough. Return these numbers."""
    turns = [max(old.least_steps, new.least_steps)]
    while True:
        steps = turns[-1]
        epoch_seconds = old.take_turn(steps)
        new.take_turn(steps)
        if epoch_seconds * steps / old.steps_per_epoch >= _TURN_SECONDS:
            return turns
        turns.append(2 * steps)


def _moved_path(now: Path, before: Path) -> Iterator[str]:
    """Yield the project's folders on Python's path, as folders of the other commit."""
    for entry in filter(None, sys.path):
        folder = Path(entry).resolve()
        if folder.is_relative_to(now) and folder.name != "site-packages":
            yield str(before / folder.relative_to(now))
