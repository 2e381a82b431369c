"""Compare this folder's trainings with another commit's.

Both sides train the same packed data on this machine, in turns of a fraction of a second. Other
programs therefore slow both sides, and no record of another machine is needed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from photofinish.config.loader import read_params
from photofinish.errors import ConfigError, NotComparedError, UserError
from photofinish.gate.change import Change, Rounds, Turn
from photofinish.git import git
from photofinish.machine.fingerprint import CpuTarget, GpuTarget, fingerprint
from photofinish.results.trained import DeviceLabel
from photofinish.stage.locks import exclusive_machine
from photofinish.wording import ratio

_TURN_SECONDS = 0.05
"""Least time of a turn, by hand. Most other programs run longer, and so slow both sides."""
_FEWEST_ROUNDS, _ENOUGH_ROUNDS, _MOST_SECONDS = 3, 30, 8.0
"""Limits on the rounds of a pair of processes, by hand: pairs differ more than a median of 30."""
_MOST_STARTS = 5
"""Maximum number of pairs of processes."""
_PARAMS = Path("params.yaml")


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
        assert self._process.stdout
        if not (line := self._process.stdout.readline()):
            raise UserError(
                f"{self._what} did not train, so there is nothing to compare: see above"
            )
        return line.strip()

    def take_turn(self, steps: int) -> Turn:
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


def changes_since(base: str, allowed: float) -> dict[str, Change]:
    """Return how each training changed since `base`, and print a line for each."""
    top = Path(git(Path(), "rev-parse", "--show-toplevel")).resolve()
    now = Checkout(top, Path.cwd().resolve(), "now")
    try:
        commit = git(Path(), "merge-base", base, "HEAD")
    except UserError as error:
        raise ConfigError(
            f"there is no common commit with {base} here. Name another, or fetch more: "
            f"a clone of CI often has one commit (`fetch-depth: 0`)"
        ) from error
    with tempfile.TemporaryDirectory() as temporary:
        before, changes = exported(now, commit, Path(temporary).resolve()), {}
        for training in _comparable(before, now):
            change = _compare(training, before, now, allowed)
            print(f"{training} since {before.title}: {change or 'unchanged'}", flush=True)
            if change:
                changes[str(training)] = change
    return changes


def check(changes: dict[str, Change], *, same_losses: bool) -> None:
    """Raise UserError if a training is slower, or has other losses that should be the same.

    Raise NotComparedError if neither is clear.
    """
    bits = {name: change.bits[0] for name, change in changes.items() if same_losses}
    if slower := [name for name, change in changes.items() if change.is_too_slow]:
        raise UserError(
            f"more than {ratio(changes[slower[0]].allowed)}x slower: {', '.join(slower)}. "
            f"To accept it, raise --slower"
        )
    if other := [name for name, is_same in bits.items() if is_same is False]:
        raise UserError(f"losses changed: {', '.join(other)}")
    unclear = [name for name, change in changes.items() if not change.is_clear]
    unclear += [name for name, is_same in bits.items() if is_same is None]
    if unclear:
        raise NotComparedError(
            f"no clear result, so run it again: {', '.join(dict.fromkeys(unclear))}"
        )


def exported(work: Checkout, commit: str, folder: Path) -> Checkout:
    """Write the files of a commit to a folder, without those of submodules."""
    with tempfile.TemporaryDirectory() as temporary:
        index = f"{temporary}/index"
        git(work.top, "read-tree", commit, GIT_INDEX_FILE=index)
        git(work.top, "checkout-index", "--all", f"--prefix={folder}/", GIT_INDEX_FILE=index)
    (folder / ".git").mkdir()  # so that custom code is named as in the working tree
    there = folder / work.folder.relative_to(work.top)
    if not (there / _PARAMS).is_file():
        raise ConfigError(f"{commit[:10]} has no {_PARAMS} here: name another commit")
    return Checkout(folder, there, commit[:10])


def _comparable(before: Checkout, now: Checkout) -> list[TimedTraining]:
    """Return the trainings that both sides have, and print why others are not compared.

    Raise UserError if all were left out, so that an empty comparison does not pass.
    """
    params, params_before = (read_params(side.folder / _PARAMS) for side in (now, before))
    cpu_host, gpu_host = fingerprint(params.devices)
    hosts: dict[DeviceLabel, CpuTarget | GpuTarget] = {"cpu": cpu_host}
    if not gpu_host.missing:
        hosts["gpu"] = gpu_host
    trainings, refused = [], [f"{name} is a script" for name in params.scripts]
    for (name, experiment), (device, host) in product(params.experiments.items(), hosts.items()):
        data = now.folder / "data/splits" / experiment.dataset
        training = TimedTraining(name, device, data, now.folder / "data/weights" / name)
        if name not in params_before.experiments:
            print(f"{training}: new since {before.title}")
        elif params_before.datasets.get(experiment.dataset) != params.datasets[experiment.dataset]:
            refused.append(f"{training} uses the data set {experiment.dataset}, which was changed")
        elif host.processes > 1:
            refused.append(f"{training} trains in several processes")
        elif params.datasets[experiment.dataset].decode == "each_epoch":
            refused.append(f"{training} reads its data set in each epoch")
        else:
            trainings.append(training)
    if refused and not trainings:
        raise UserError(f"nothing was compared: {'; '.join(refused)}")
    for reason in refused:
        print(f"not compared: {reason}")
    return trainings


def _compare(
    training: TimedTraining, before: Checkout, now: Checkout, allowed: float
) -> Change | None:
    """Time a training on both sides, in new processes until it is clear whether it is slower.

    Returns None if settings and code are the same.
    """
    pairs: tuple[Rounds, ...] = ()
    turns = [1]
    with exclusive_machine(f"gate: {training.name}"):
        while len(pairs) < _MOST_STARTS and not Change(allowed, pairs).is_clear:
            with start_side(before, now, training) as old, start_side(now, now, training) as new:
                if old.answer() == new.answer():
                    return None
                pairs += (take_turns(old, new, turns, len(pairs)),)
    return Change(allowed, pairs)
